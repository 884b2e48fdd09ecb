"""Replaces random operators by graph inputs, which the session fills with random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph import counter_random, shape_ops
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.names import ORIGIN, RANDOM, RANDOM_MASK
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape, Tensor
from popdist_onnx.graph.values import constant, dims, operand, static

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from popdist_onnx.graph.values import Dim

_FIRST_WITH_MODE = 12
"""Dropout has an input for its mode since this opset; before, training sessions simply dropped."""


class RandomInputs(Pass):
    """Replaces random operators by inputs ``RandomMask___<n>``; see `popdist_onnx.graph.names`.

    In the main graph the input is the random tensor. In a branch or the body of a loop it is a key,
    from which the graph computes other numbers in each turn (`popdist_onnx.graph.counter_random`).

    Needs: shapes of random tensors are known, apart from the batch. Leaves: no random operator in
    any graph; Dropout that does not drop is an Identity.

    Args:
        training: Whether Dropout of opsets before 12, which has no mode, drops.
    """

    def __init__(self, *, training: bool = True) -> None:
        self.training = training

    def change(self, model: ir.Model) -> bool:
        """Replaces the operators; false where there are none."""
        if not any(_is_random(node) for node in model.graph.all_nodes()):
            return False
        main = Tape(model.graph)
        inputs = _Inputs(main)
        self._replace(inputs, main, ())
        return True

    def _replace(self, inputs: _Inputs, tape: Tape, turns: tuple[ir.Value, ...]) -> None:
        """Replaces the operators of a graph that runs once in each of some turns."""
        for node in list(tape.graph):
            if _is_random(node):
                with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
                    source = _Source(inputs, tape, node, turns, training=self.training)
                    tape.substitute(node, _REPLACED[node.op_type](source))
                continue
            for body in list(subgraphs(node)):
                if not any(_is_random(one) for one in body.all_nodes()):
                    continue
                scope = f"{node.outputs[0].name}/{body.name}/"
                if node.op_type == "Scan":
                    turn, node = _counted(tape, node, scope)  # noqa: PLW2901 - written anew
                    around = (*turns, turn)
                elif node.op_type == "Loop":
                    around = (*turns, body.inputs[0])
                elif node.op_type == "If":
                    around = turns
                else:
                    raise popart_exception(
                        "PD525",
                        f"{node.op_type} {node.name!r} has random operators inside",
                        accepted="random operators inside of If, Loop and Scan",
                    )
                self._replace(inputs, Tape(body, scope=scope, opset=tape.opset), around)


def _is_random(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _REPLACED


def _counted(tape: Tape, node: ir.Node, scope: str) -> tuple[ir.Value, ir.Node]:
    """Adds a state to a `Scan` that counts its turns; the turn, and the node with the state."""
    body = node.attributes["body"].as_graph()
    count = len(body.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    inner = Tape(body, scope=scope, opset=tape.opset)
    turn = ir.Value(
        name=inner.fresh("turn"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([])
    )
    body.inputs.insert(count, turn)
    body.outputs.insert(count, inner.Add(turn, 1).value)
    settings = {name: one.value for name, one in node.attributes.items()}
    given = [*node.inputs[:count], tape.scalar(0), *node.inputs[count:]]
    with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
        made = list(tape.many("Scan", len(node.outputs) + 1, *given, **settings))
        del made[count]
        for old, new in zip(node.outputs, made, strict=True):
            new.value.type, new.value.shape = old.type, old.shape
        tape.substitute(node, made)
    producer = made[0].value.producer()
    assert producer is not None  # noqa: S101 - written above
    return turn, producer


class _Inputs:
    """The random inputs of the main graph."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._count = tape, 0
        self.graph = tape.graph

    def add(
        self,
        node: ir.Node,
        dtype: ir.DataType,
        shape: Sequence[Dim],
        settings: Mapping[str, object],
    ) -> Tensor:
        """An input for a node, which the runtime fills as the settings say."""
        name = f"{RANDOM_MASK}{self._count}"
        self._count += 1
        made = self._tape.input(name, dtype, shape)
        made.value.metadata_props.update({key: str(value) for key, value in settings.items()})
        seed = node.attributes.get("seed")
        if seed is not None:
            made.value.metadata_props[f"{RANDOM}.seed"] = str(seed.value)
        return made


class _Source:
    """Random tensors for one node, which runs once in each of some turns.

    Args:
        inputs: The main graph's random inputs.
        tape: The node's graph.
        node: The random operator.
        turns: The turns of the loops around, the outermost first.
        training: Whether Dropout without a mode drops.
    """

    def __init__(
        self,
        inputs: _Inputs,
        tape: Tape,
        node: ir.Node,
        turns: tuple[ir.Value, ...],
        *,
        training: bool,
    ) -> None:
        self._inputs, self._turns = inputs, turns
        self.tape, self.node, self.training = tape, node, training

    def kept(self, like: Tensor, keep: float | Tensor) -> Tensor:
        """A mask of the shape of a tensor, true with a probability."""
        if isinstance(keep, float) and not self._is_nested:
            settings = {RANDOM: "bernoulli", f"{RANDOM}.keep": keep}
            return self._drawn(like.value, ir.DataType.BOOL, settings)
        return self.uniform(like.value, ir.DataType.FLOAT, 0.0, 1.0) < keep

    def uniform(self, like: ir.Value, dtype: ir.DataType, low: float, high: float) -> Tensor:
        """Numbers of an interval, in the shape of a value."""
        if not self._is_nested:
            settings = {RANDOM: "uniform", f"{RANDOM}.low": low, f"{RANDOM}.high": high}
            return self._drawn(like, dtype, settings)
        made = counter_random.uniform(self.tape, self._key(), self._lengths(like))
        return self.tape.Cast(made * (high - low) + low, to=dtype)

    def normal(self, like: ir.Value, dtype: ir.DataType, mean: float, scale: float) -> Tensor:
        """Numbers of a normal distribution, in the shape of a value."""
        if not self._is_nested:
            settings = {RANDOM: "normal", f"{RANDOM}.mean": mean, f"{RANDOM}.scale": scale}
            return self._drawn(like, dtype, settings)
        made = counter_random.normal(self.tape, self._key(), self._lengths(like))
        return self.tape.Cast(made * scale + mean, to=dtype)

    @property
    def _is_nested(self) -> bool:
        return self.tape.graph is not self._inputs.graph

    def _drawn(self, like: ir.Value, dtype: ir.DataType, settings: Mapping[str, object]) -> Tensor:
        shape = dims(like)
        if shape is None:
            raise popart_exception(
                "PD525",
                f"the random operator {self.node.name!r} makes a tensor of unknown rank",
                hint="export the model with fixed shapes",
            )
        return self._inputs.add(self.node, dtype, shape, settings)

    def _key(self) -> Tensor:
        key = self._inputs.add(self.node, ir.DataType.INT64, (), {RANDOM: "key"})
        return counter_random.stream(self.tape, self.tape.wrap(key.value), self._turns)

    def _lengths(self, like: ir.Value) -> Tensor:
        """The shape of a value, which may be the node's own output."""
        if static(like):
            return self.tape.ints(*(int(one) for one in dims(like) or () if one is not None))
        operand = self.node.inputs[0] if self.node.inputs else None
        if operand is None:
            raise popart_exception(
                "PD525", f"the random operator {self.node.name!r} makes a tensor of unknown shape"
            )
        return self.tape.Shape(operand)

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
    ratio, drops = _ratio(source), _drops(source)
    if ratio == 0.0 or drops is False:
        all_kept = [] if len(node.outputs) == 1 else [shape_ops.fill(x, 1, ir.DataType.BOOL)]
        return [tape.Identity(x), *all_kept]
    keep = 1.0 - ratio
    mask = source.kept(x, keep)
    scale = (
        tape.scalar(1 / keep, x.dtype)
        if isinstance(keep, float)
        else tape.Cast(1.0 / keep, to=x.dtype)
    )
    if isinstance(drops, Tensor):
        mask = tape.Or(mask, tape.Not(drops))
        scale = tape.Where(drops, scale, tape.scalar(1, x.dtype))
    factor = tape.Where(mask, scale, tape.scalar(0, x.dtype))
    return [x * factor, mask][: len(node.outputs)]


def _ratio(source: _Source) -> float | Tensor:
    """How many elements are dropped: a number, or a tensor where the model computes it."""
    node = source.node
    given = operand(node, 1)
    if given is None:
        return 0.5
    known = constant(given)
    if known is None and given.const_value is not None:
        known = np.asarray(given.const_value.numpy())
    if known is None:
        single = source.tape.Cast(source.tape.wrap(given), to=ir.DataType.FLOAT)
        return source.tape.Reshape(single, source.tape.constant(np.zeros(0, np.int64)))
    if not 0.0 <= float(known.item()) < 1.0:
        raise popart_exception(
            "PD525",
            f"Dropout {node.name!r}: ratio value {float(known.item()):.7g} is not valid. Please "
            "use a value in the interval [0,1)",
        )
    return float(known.item())


def _drops(source: _Source) -> bool | Tensor:
    """Whether Dropout drops: known, or a tensor where the model computes it."""
    node = source.node
    origin = node.metadata_props.get(ORIGIN, "")
    if origin.startswith("Dropout-") and int(origin.partition("-")[2]) < _FIRST_WITH_MODE:
        return source.training
    mode = operand(node, 2)
    if mode is None:
        return False
    known = constant(mode)
    if known is None:
        scalar = source.tape.constant(np.zeros(0, np.int64))
        return source.tape.Reshape(source.tape.wrap(mode), scalar)
    return bool(known.item())


def _given(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise popart_exception("PD525", f"{node.op_type} {node.name!r} lacks input {index}")
    return value


def _normal(source: _Source) -> Sequence[Tensor]:
    mean, scale = source.number("mean", 0.0), source.number("scale", 1.0)
    return [source.normal(source.output, source.dtype, mean, scale)]


def _uniform(source: _Source) -> Sequence[Tensor]:
    low, high = source.number("low", 0.0), source.number("high", 1.0)
    return [source.uniform(source.output, source.dtype, low, high)]


def _bernoulli(source: _Source) -> Sequence[Tensor]:
    """One with the probability in the input, else zero."""
    probability = source.tape.wrap(_given(source.node, 0))
    drawn = source.uniform(probability.value, probability.dtype, 0.0, 1.0)
    return [source.tape.Cast(drawn < probability, to=source.dtype.value)]


def _multinomial(source: _Source) -> Sequence[Tensor]:
    """The class of the largest sum of logarithm and Gumbel noise, for each sample."""
    tape = source.tape
    logits = tape.wrap(_given(source.node, 0))
    samples = source.node.attributes.get_int("sample_size", 1)
    wide = tape.Unsqueeze(logits, [1])
    spread = tape.Expand(wide, tape.ints(1, samples, 1))
    drawn = source.uniform(spread.value, ir.DataType.FLOAT, 0.0, 1.0)
    positive = tape.Max(drawn, tape.scalar(2.0**-25, ir.DataType.FLOAT))
    noise = tape.Neg(tape.Log(tape.Neg(tape.Log(positive))))
    scores = tape.Cast(spread, to=ir.DataType.FLOAT) + noise
    return [
        tape.Cast(
            tape.ArgMax(scores, axis=2, keepdims=0),
            to=source.node.attributes.get_int("dtype", int(ir.DataType.INT32)),
        )
    ]


_REPLACED: dict[str, Callable[[_Source], Sequence[Tensor]]] = {
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "Multinomial": _multinomial,
    "RandomNormal": _normal,
    "RandomNormalLike": _normal,
    "RandomUniform": _uniform,
    "RandomUniformLike": _uniform,
}
