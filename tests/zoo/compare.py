"""Compares gradients and losses of an exported architecture with those of torch."""

from __future__ import annotations

import copy
import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import torch
from torch.nn import functional

import popdist_onnx as popart
from popdist_onnx.training.torch_modules import EXPORTERS, ties_of
from tests.zoo.architectures import MAKERS, declare_operators

if TYPE_CHECKING:
    import onnx

STEPS, RATE, ROUNDINGS = 3, 0.01, 3

TIMES, FLOOR = 20, 2e-5
"""How much larger than torch's own error in single precision an error may be, and from where on."""

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "zoo"


def loss_of(scores, labels):
    """Cross entropy where there are classes, else half of the mean squared distance."""
    if labels.dtype == torch.int64:
        classes = scores.flatten(0, -2) if scores.dim() > 2 else scores
        return functional.cross_entropy(classes, labels.flatten())
    return (scores - labels).square().mean() / 2


def labels_for(scores: torch.Tensor) -> torch.Tensor:
    """Random classes for scores of rank two and three, else random numbers."""
    rng = torch.Generator().manual_seed(2)
    if scores.dim() in (2, 3):
        return torch.randint(0, scores.shape[-1], scores.shape[:-1], generator=rng)
    return torch.randn(scores.shape, generator=rng)


def by_torch(model, inputs, labels, dtype) -> tuple[dict[str, np.ndarray], list[float]]:
    """Gradients of the first step by parameter, and the losses of all steps."""
    model = copy.deepcopy(model).to(dtype).train()
    given = [one.to(dtype) if one.is_floating_point() else one for one in (*inputs, labels)]
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    optimizer = torch.optim.SGD(trained.values(), lr=RATE)
    gradients: dict[str, np.ndarray] = {}
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(*given[:-1]), given[-1])
        loss.backward()
        if step == 0:
            gradients = {
                name: one.grad.double().numpy().copy()
                for name, one in trained.items()
                if one.grad is not None
            }
        losses.append(loss.item())
        optimizer.step()
    return gradients, losses


def exported(model, inputs, labels, exporter: str, *, check: bool = True) -> onnx.ModelProto:
    """The model with its loss."""
    return popart.from_torch(
        copy.deepcopy(model),
        inputs,
        loss=loss_of,
        example_labels=labels,
        exporter=exporter,
        check=check,
    )


def by_session(proto, model, inputs, labels) -> tuple[dict[str, np.ndarray], list[float]]:
    """The same as `by_torch`, from a session with the exported model."""
    fed = [one.numpy() for one in (*inputs, labels)]
    names = [value.name for value in proto.graph.input]
    shapes = popart.InputShapeInfo()
    kinds = {"float32": "FLOAT", "int64": "INT64"}
    for name, array in zip(names, fed, strict=True):
        shapes.add(name, popart.TensorInfo(kinds[array.dtype.name], list(array.shape)))
    every = popart.AnchorReturnType("All")
    ties = ties_of(model)
    stored = {tensor.name for tensor in proto.graph.initializer}
    trained = [name for name, one in model.named_parameters() if one.requires_grad]
    asked = [name for name in trained if name in stored and name not in ties]
    anchors = {"loss": every, **{f"Gradient___{name}": every for name in asked}}
    session = popart.TrainingSession(
        proto,
        popart.DataFlow(STEPS, anchors),
        "loss",
        popart.SGD({"defaultLearningRate": (RATE, False)}),
        popart.DeviceManager().createCpuDevice(),
        inputShapeInfo=shapes,
    )
    session.prepareDevice()
    session.weightsFromHost()
    found = session.initAnchorArrays()
    repeated = {n: np.stack([a] * STEPS) for n, a in zip(names, fed, strict=True)}
    session.run(popart.PyStepIO(repeated, found))
    gradients = {name: found[f"Gradient___{name}"][0].astype(np.float64) for name in asked}
    return gradients, [float(one) for one in found["loss"].reshape(-1)]


def refusal_of_onnxruntime(proto: onnx.ModelProto, given) -> str:
    """Why ONNX Runtime alone cannot run a file that torch has written; empty where it can."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    names = [value.name for value in proto.graph.input]
    feeds = {name: one.numpy() for name, one in zip(names, given, strict=True)}
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's own classes are private
        return str(error).strip().splitlines()[0]
    return ""


def worst(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> tuple[float, str]:
    """The largest error of a gradient, relative to its own size or a thousandth of the largest."""
    largest = max(float(np.abs(one).max(initial=0)) for one in wanted.values())
    errors = {
        name: float(np.abs(found[name].reshape(one.shape) - one).max(initial=0))
        / max(float(np.abs(one).max(initial=0)), 1e-3 * largest, 1e-30)
        for name, one in wanted.items()
    }
    name = max(errors, key=lambda one: (np.isnan(errors[one]), errors[one]))
    return errors[name], name


def _rounded(inputs, seed: int):
    """Inputs that differ by about one rounding, as a result in single precision does.

    Where that moves an activation over an edge, as of ReLU, gradients change by much more.
    """
    rng = torch.Generator().manual_seed(seed)
    half = torch.finfo(torch.float32).eps / 2
    return tuple(
        (one.double() * (1 + half * torch.randn(one.shape, generator=rng))).float()
        if one.is_floating_point()
        else one
        for one in inputs
    )


def compare(family: str, name: str) -> dict[str, Any]:
    """Compares one architecture by both exporters, and records what was found."""
    declare_operators()
    torch.manual_seed(0)
    model, inputs = MAKERS[family](name)
    with torch.no_grad():
        labels = labels_for(copy.deepcopy(model).train()(*inputs))
    exact, losses = by_torch(model, inputs, labels, torch.float64)
    own, own_losses = 0.0, 0.0
    for given in (inputs, *(_rounded(inputs, seed) for seed in range(ROUNDINGS))):
        single, single_losses = by_torch(model, given, labels, torch.float32)
        own = max(own, worst(single, exact)[0])
        own_losses = max(own_losses, _distance(single_losses, losses))
    record: dict[str, Any] = {
        "family": family,
        "name": name,
        "parameters": sum(one.numel() for one in model.parameters()),
        "torch": own,
        "torch_losses": own_losses,
        "measured": _now(),
        "exporters": {},
    }
    for exporter in EXPORTERS:
        record["exporters"][exporter] = _by_exporter(
            model, inputs, labels, exporter, exact, losses, own_losses
        )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{family}-{name}.json").write_text(json.dumps(record, indent=1))
    return record


def _now() -> str:
    """The day and the commit of the working tree."""
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%h"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return f"{datetime.now(tz=timezone.utc):%Y-%m-%d} at {commit or 'no commit'}"


def _by_exporter(model, inputs, labels, exporter, exact, losses, own_losses) -> dict[str, Any]:
    buffers = False
    try:
        try:
            proto = exported(model, inputs, labels, exporter)
        except popart.popart_exception as error:
            if error.code != "PD594":
                raise
            # What the module only notes in buffers has no part in gradients.
            proto, buffers = exported(model, inputs, labels, exporter, check=False), True
    except popart.popart_exception as error:
        return {"not exported": error.what.partition(": ")[2] or error.what}
    try:
        gradients, found = by_session(proto, model, inputs, labels)
    except popart.popart_exception as error:
        if said := refusal_of_onnxruntime(proto, [*inputs, labels]):
            return {"not exported": f"ONNX Runtime cannot run the file: {said}"}
        return {"failed": f"{error.code}: {error.what}"}
    # Whatever a loss does not depend on has a gradient of zeros here, and none in torch.
    missing = sorted(set(exact) - set(gradients))
    if missing:
        return {"failed": f"no gradient of {missing[0]}"}
    error, weight = worst(gradients, exact)
    distance = _distance(found, losses)
    for seed in range(ROUNDINGS):
        # An activation at an edge moves a loss by chance, a wrong update with any inputs.
        if distance <= TIMES * max(own_losses, FLOOR / TIMES):
            break
        given = _rounded(inputs, seed)
        _, wanted = by_torch(model, given, labels, torch.float64)
        distance = min(distance, _distance(by_session(proto, model, given, labels)[1], wanted))
    result = {"error": error, "weight": weight, "losses": distance}
    return result | ({"buffers": True} if buffers else {})


def _distance(found: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, wanted, strict=True))
