"""Replaces random operators by graph inputs, which the session fills with random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.names import ORIGIN, RANDOM, RANDOM_MASK
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape, Tensor
from popdist_onnx.graph.values import constant, dims

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_FIRST_WITH_MODE = 12
"""Dropout has an input for its mode since this opset; before, training sessions simply dropped."""


class RandomInputs(Pass):
    """Replaces random operators by inputs ``RandomMask___<n>``; see `popdist_onnx.graph.names`.

    Needs: shapes of random tensors are known, apart from the batch. Leaves: no Dropout that drops,
    no Bernoulli, RandomNormal(Like) and RandomUniform(Like) in the main graph; Dropout that does
    not drop is an Identity.

    Args:
        training: Whether Dropout of opsets before 12, which has no mode, drops.
    """

    def __init__(self, *, training: bool = True) -> None:
        self.training = training

    def change(self, model: ir.Model) -> bool:
        """Replaces the operators; false where there are none."""
        graph = model.graph
        tape = Tape(graph)
        nodes = [node for node in graph if node.domain == "" and node.op_type in _REPLACED]
        count = 0
        for node in nodes:
            with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
                source = _Source(tape, node, count, training=self.training)
                tape.substitute(node, _REPLACED[node.op_type](source))
                count = source.count
        return bool(nodes)


class _Source:
    """Adds random inputs for one node."""

    def __init__(self, tape: Tape, node: ir.Node, count: int, *, training: bool) -> None:
        self.tape, self.node, self.count, self.training = tape, node, count, training

    def draw(self, like: ir.Value, dtype: ir.DataType, settings: Mapping[str, object]) -> Tensor:
        """A random input of the shape of ``like``."""
        shape = dims(like)
        if shape is None:
            raise popart_exception(
                "PD525",
                f"the random operator {self.node.name!r} makes a tensor of unknown rank",
                hint="export the model with fixed shapes",
            )
        name = f"{RANDOM_MASK}{self.count}"
        self.count += 1
        made = self.tape.input(name, dtype, shape)
        made.value.metadata_props.update({key: str(value) for key, value in settings.items()})
        seed = self.node.attributes.get("seed")
        if seed is not None:
            made.value.metadata_props[f"{RANDOM}.seed"] = str(seed.value)
        return made

    def number(self, name: str, default: float) -> float:
        """A floating-point attribute."""
        return float(self.node.attributes.get_float(name, default))

    @property
    def output(self) -> ir.Value:
        """The node's first output."""
        return self.node.outputs[0]

    @property
    def dtype(self) -> ir.DataType:
        """Type of the node's first output."""
        return self.output.dtype or ir.DataType.FLOAT


def random_inputs(model: ir.Model, *, training: bool = True) -> ir.Model:
    """Replaces random operators in place; ``training`` decides for Dropout before opset 12."""
    RandomInputs(training=training)(model)
    return model


def _dropout(source: _Source) -> Sequence[Tensor]:
    """X times mask / keep."""
    tape, node = source.tape, source.node
    x = tape.wrap(_given(node, 0))
    ratio = _ratio(node)
    if ratio == 0.0 or not _drops(source):
        all_kept = [] if len(node.outputs) == 1 else [shape_ops.fill(x, 1, ir.DataType.BOOL)]
        return [tape.Identity(x), *all_kept]
    keep = 1.0 - ratio
    settings = {RANDOM: "bernoulli", f"{RANDOM}.keep": keep}
    mask = source.draw(x.value, ir.DataType.BOOL, settings)
    factor = tape.Where(mask, tape.scalar(1 / keep, x.dtype), tape.scalar(0, x.dtype))
    return [x * factor, mask][: len(node.outputs)]


def _ratio(node: ir.Node) -> float:
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return 0.5
    known = constant(given)
    if known is None and given.const_value is not None:
        known = np.asarray(given.const_value.numpy())
    if known is None or not 0.0 <= float(known.item()) < 1.0:
        raise popart_exception(
            "PD525",
            f"the ratio of Dropout {node.name!r} must be a constant of at least 0 and below 1",
            value=None if known is None else known.item(),
        )
    return float(known.item())


def _drops(source: _Source) -> bool:
    node = source.node
    origin = node.metadata_props.get(ORIGIN, "")
    if origin.startswith("Dropout-") and int(origin.partition("-")[2]) < _FIRST_WITH_MODE:
        return source.training
    mode = node.inputs[2] if len(node.inputs) > 2 else None  # noqa: PLR2004 - the third input
    if mode is None:
        return False
    known = constant(mode)
    if known is None:
        raise popart_exception(
            "PD525", f"the mode of Dropout {node.name!r} must be a constant", value=mode.name
        )
    return bool(known.item())


def _given(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise popart_exception("PD525", f"{node.op_type} {node.name!r} lacks input {index}")
    return value


def _normal(source: _Source) -> Sequence[Tensor]:
    settings = {
        RANDOM: "normal",
        f"{RANDOM}.mean": source.number("mean", 0.0),
        f"{RANDOM}.scale": source.number("scale", 1.0),
    }
    return [source.draw(source.output, source.dtype, settings)]


def _uniform(source: _Source) -> Sequence[Tensor]:
    settings = {
        RANDOM: "uniform",
        f"{RANDOM}.low": source.number("low", 0.0),
        f"{RANDOM}.high": source.number("high", 1.0),
    }
    return [source.draw(source.output, source.dtype, settings)]


def _bernoulli(source: _Source) -> Sequence[Tensor]:
    """One with the probability in the input, else zero."""
    probability = source.tape.wrap(_given(source.node, 0))
    settings = {RANDOM: "uniform", f"{RANDOM}.low": 0.0, f"{RANDOM}.high": 1.0}
    drawn = source.draw(probability.value, probability.dtype, settings)
    return [source.tape.Cast(drawn < probability, to=source.dtype.value)]


_REPLACED: dict[str, Callable[[_Source], Sequence[Tensor]]] = {
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "RandomNormal": _normal,
    "RandomNormalLike": _normal,
    "RandomUniform": _uniform,
    "RandomUniformLike": _uniform,
}
