"""Whether an exported file has the gradients of the module of torch.

A file has the values of a forward pass only. `detach`, `torch.no_grad`, numbers taken out of
tensors, hooks, and the backward passes of a `torch.autograd.Function` are not in it, so that the
file would be trained in another way without an error. So gradients of a random sum of the outputs
are compared.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.names import GRADIENT
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.session.devices import DeviceManager
from popdist_onnx.session.pipeline import read_with_shapes, training_graph
from popdist_onnx.session.step_io import PyStepIO
from popdist_onnx.session.training import TrainingSession
from popdist_onnx.training.export_check import (
    RANDOM,
    as_trained,
    doubled,
    flat,
    wide,
    without_dropout,
)
from popdist_onnx.transforms.autodiff import gradients_of
from popdist_onnx.types import (
    AnchorReturnType,
    DataFlow,
    DataType,
    InputShapeInfo,
    SessionOptions,
    TensorInfo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import torch

logger = logging.getLogger("popdist.onnx")

Gradients: TypeAlias = "dict[str, np.ndarray[Any, np.dtype[Any]]]"

_LOSS = "popdist.check/loss"
_LARGEST = 1 << 28
"""Bytes of parameters up to which gradients are compared: a comparison needs several copies."""

_SHARE, _OF_ALL, _ROUNDING = 0.02, 1e-4, 30
"""A gradient differs by more than this share of its largest element, this share of the largest of
all, and this many times what torch's own is off in single precision."""

_TRIES = 3
"""Inputs that are tried near a point: at an edge of an activation both gradients may be right."""

_SHOWN = 4


def check_gradients(
    proto: onnx.ModelProto,
    module: torch.nn.Module,
    arguments: Sequence[torch.Tensor],
    names: Mapping[str, str],
) -> None:
    """Compares the gradients of an exported module with those of the module.

    A module that draws random numbers of its own, has other parameters than of single precision, or
    more than 256 MiB of them is not compared.

    Args:
        proto: The exported model, as it will be trained.
        module: The module.
        arguments: Its inputs.
        names: The names of the model's weights, by those of the module's parameters.

    Raises:
        popart_exception: A gradient differs.
    """
    trained = {n: one for n, one in module.named_parameters() if one.requires_grad}
    size = sum(one.numel() * one.element_size() for one in trained.values())
    drawn = {node.op_type for node in proto.graph.node} & RANDOM
    if (
        drawn
        or size > _LARGEST
        or {str(one.dtype) for one in trained.values()} != {"torch.float32"}
    ):
        logger.info("the gradients of an exported module are not compared")
        return
    stored = {one.name for one in proto.graph.initializer}
    names = {name: names[name] for name in trained if names[name] in stored}
    factors = _factors(module, arguments)
    try:
        by_file = _of_file(proto, arguments, factors, {*names.values()})
    except popart_exception as error:
        # Training will say so.
        logger.info("an exported module cannot be differentiated: %s", error)
        return
    # A number that was taken out of a tensor is right for the example alone.
    for point in (arguments, [_scaled(one) for one in arguments]):
        found: list[str] = []
        for number in range(_TRIES):
            given = [_moved(one, number) for one in point]
            found = _different(by_file(given), module, given, factors, names)
            if not found:
                break
        if found:
            raise _refused(found)


def _refused(found: Sequence[str]) -> popart_exception:
    return popart_exception(
        "PD597",
        "the file that torch exported has other gradients than the module",
        value=", ".join(found[:_SHOWN])
        + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""),
        hint="a file does not carry detach, torch.no_grad, tensors made into numbers, hooks, or "
        "the backward of a torch.autograd.Function: write forward without them, or freeze what "
        "they keep from training; with check=False the file is trained as it is",
    )


def _different(
    made: Gradients,
    module: torch.nn.Module,
    given: Sequence[torch.Tensor],
    factors: Sequence[np.ndarray[Any, Any]],
    names: Mapping[str, str],
) -> list[str]:
    """The parameters whose gradients differ from those that torch computes."""
    wanted = {n: one for n, one in _of_torch(module, given, factors).items() if n in names}
    far = {
        name: float(np.abs(made.get(names[name], 0.0) - array).max(initial=0))
        for name, array in wanted.items()
    }
    largest = max((float(np.abs(one).max(initial=0)) for one in wanted.values()), default=0.0)
    suspects = [
        name
        for name, gap in far.items()
        if not gap <= max(_SHARE * np.abs(wanted[name]).max(initial=0), _OF_ALL * largest)
    ]
    if not suspects:
        return []
    exact = _of_torch(doubled(module), [wide(one) for one in given], factors)
    return [
        name
        for name in suspects
        if not np.abs(made.get(names[name], 0.0) - exact[name]).max(initial=0)
        <= _ROUNDING * np.abs(wanted[name] - exact[name]).max(initial=0)
    ]


def _factors(
    module: torch.nn.Module, arguments: Sequence[torch.Tensor]
) -> list[np.ndarray[Any, Any]]:
    """Random factors for the elements of all outputs."""
    rng = np.random.default_rng(0)
    with as_trained(module):
        outputs = flat(module(*[one.clone() for one in arguments]))
        return [rng.normal(size=tuple(one.shape)).astype(np.float32) for one in outputs]


def _of_torch(
    module: torch.nn.Module,
    given: Sequence[torch.Tensor],
    factors: Sequence[np.ndarray[Any, Any]],
) -> Gradients:
    """The gradients of the outputs' sum with factors."""
    import torch

    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    with as_trained(module), torch.enable_grad():
        outputs = flat(module(*[one.clone() for one in given]))
        parts = [
            (one * torch.from_numpy(factor).to(one.dtype)).sum()
            for one, factor in zip(outputs, factors, strict=True)
            if one.requires_grad
        ]
        found: Sequence[torch.Tensor | None] = [None] * len(trained)
        if parts:
            total = torch.stack(parts).sum()
            found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    return {
        name: np.zeros(tuple(one.shape)) if grad is None else grad.detach().double().numpy()
        for (name, one), grad in zip(trained.items(), found, strict=True)
    }


def _of_file(
    proto: onnx.ModelProto,
    given: Sequence[torch.Tensor],
    factors: Sequence[np.ndarray[Any, Any]],
    weights: set[str],
) -> Callable[[Sequence[torch.Tensor]], Gradients]:
    """A function of inputs that gives the gradients of the same sum, by a training session."""
    still = without_dropout(proto)
    shapes = InputShapeInfo()
    for value, one in zip(still.graph.input, given, strict=False):
        kind = DataType.from_onnx(value.type.tensor_type.elem_type)
        shapes.add(value.name, TensorInfo(kind, list(one.shape)))
    parts = []
    for number, (output, factor) in enumerate(zip(proto.graph.output, factors, strict=False)):
        if output.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            continue
        name = f"{_LOSS}/{number}"
        constant = onnx.numpy_helper.from_array(np.asarray(factor, np.float32), f"{name}/factor")
        still.graph.node.extend(
            [
                onnx.helper.make_node("Constant", [], [f"{name}/factor"], value=constant),
                onnx.helper.make_node("Mul", [output.name, f"{name}/factor"], [f"{name}/terms"]),
                onnx.helper.make_node("ReduceSum", [f"{name}/terms"], [name], keepdims=0),
            ]
        )
        parts.append(name)
    if not parts:
        return lambda _: {}
    still.graph.node.append(onnx.helper.make_node("Sum", parts, [_LOSS]))
    try:
        return _by_session(still, shapes, weights)
    except popart_exception as error:
        if error.code != "PD576":
            raise
    # Some have no gradient at all: the others are asked for.
    optimizer = SGD({"defaultLearningRate": (0.0, False)})
    graph = training_graph(read_with_shapes(still, shapes), _LOSS, optimizer, SessionOptions())
    return _by_session(still, shapes, weights & {*gradients_of(graph)})


def _by_session(
    proto: onnx.ModelProto,
    shapes: InputShapeInfo,
    weights: Collection[str],
) -> Callable[[Sequence[torch.Tensor]], Gradients]:
    if not weights:
        return lambda _: {}
    session = TrainingSession(
        proto,
        DataFlow(1, {GRADIENT + name: AnchorReturnType("All") for name in sorted(weights)}),
        _LOSS,
        SGD({"defaultLearningRate": (0.0, False)}),
        DeviceManager().createCpuDevice(),
        inputShapeInfo=shapes,
        name="comparison of gradients",
    )
    session.prepareDevice()
    session.weightsFromHost()
    arrays = session.initAnchorArrays()
    inputs = [value.name for value in proto.graph.input]

    def gradients(given: Sequence[torch.Tensor]) -> Gradients:
        fed = {name: one.detach().numpy() for name, one in zip(inputs, given, strict=False)}
        session.run(PyStepIO(fed, arrays))
        return {name.removeprefix(GRADIENT): one.astype("f8") for name, one in arrays.items()}

    return gradients


def _scaled(one: torch.Tensor) -> torch.Tensor:
    """Other inputs: floating-point ones closer to zero, the samples of others in reverse order."""
    return one * 0.75 if one.is_floating_point() else one.flip(0) if one.dim() else one


def _moved(one: torch.Tensor, number: int) -> torch.Tensor:
    """An input; in later tries floating-point ones with noise as large as they are."""
    import torch

    if number == 0 or not one.is_floating_point():
        return one
    drawn = torch.randn(one.shape, generator=torch.Generator().manual_seed(number))
    return one + drawn.to(one) * max(float(one.abs().max()), 1.0) / 4
