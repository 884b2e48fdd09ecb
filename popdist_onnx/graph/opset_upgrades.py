"""Upgrades models of older opsets to opset 18: a function for each change of an operator.

Later passes handle one form only; names of values stay.

Each function edits an older node's parts into those of the newer form. Operators that only gained
types, or attributes with a default, need no function.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import NotOnHostError
from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.compat import WORKING_OPSET, subgraphs
from popdist_onnx.graph.fold import fold_node
from popdist_onnx.graph.names import BUILDER, ORIGIN
from popdist_onnx.graph.tensor import Tape

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_onnx.graph.tensor import Operand, Tensor
    from popdist_onnx.graph.values import Array


@dataclass
class _Parts:
    """A node as editable parts.

    Attributes:
        op_type: The operator.
        inputs: Its inputs.
        attributes: Its attributes, as plain values.
        outputs: The number of its outputs.
        read: The outputs that have readers.
        after: Functions to apply to outputs, by their index.
        beyond: Outputs that the newer form does not have, computed otherwise.
    """

    op_type: str
    inputs: list[Operand]
    attributes: dict[str, Any]
    outputs: int
    read: list[bool]
    after: dict[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    beyond: list[Tensor] = field(default_factory=list)

    def take(self, name: str, default: Any = None) -> Any:
        """Removes an attribute and returns its value, else the default."""
        return self.attributes.pop(name, default)

    def feed(self, index: int, operand: Operand) -> None:
        """Sets an input; missing inputs before it are left out."""
        self.inputs += [None] * (index + 1 - len(self.inputs))
        self.inputs[index] = operand

    def tensor(self, tape: Tape, index: int = 0) -> Tensor:
        """An input as a tensor of the tape."""
        return tape.tensor(self.inputs[index])


Upgrade: TypeAlias = "Callable[[Tape, _Parts], None]"

_UPGRADES: list[tuple[int, str, Upgrade]] = []
"""Since which opset which operator is changed how."""


_AS_BEFORE = frozenset({"ConvTranspose"})
"""Operators that PopART's builder means as they were before their change, whatever its opset."""


def _upgrades(since: int, *op_types: str) -> Callable[[Upgrade], Upgrade]:
    def register(function: Upgrade) -> Upgrade:
        _UPGRADES.extend((since, op_type, function) for op_type in op_types)
        return function

    return register


def _ints(values: Any) -> Array | None:
    return None if values is None else np.asarray(values, np.int64)


@_upgrades(7, "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
def _broadcast(tape: Tape, node: _Parts) -> None:
    """Opset 6 aligns the second operand at an axis; numpy aligns at the end."""
    aligned, axis = node.take("broadcast", 0), node.take("axis")
    first, second = node.tensor(tape), node.tensor(tape, 1)
    if not aligned or axis is None or second.rank == 0:
        return
    trailing = first.rank - (axis % first.rank) - second.rank
    if trailing:
        node.feed(1, tape.Unsqueeze(second, [second.rank + i for i in range(trailing)]))


@_upgrades(7, "PRelu")
def _slope(tape: Tape, node: _Parts) -> None:
    """Opset 6 applies one slope per channel; numpy aligns at the end."""
    first, slope = node.tensor(tape), node.tensor(tape, 1)
    if slope.rank == 1 and first.rank > 1 and slope.dims != (1,):
        node.feed(1, tape.Unsqueeze(slope, [1 + i for i in range(first.rank - 2)]))


@_upgrades(7, "Gemm")
def _gemm(tape: Tape, node: _Parts) -> None:
    del tape
    node.take("broadcast")


@_upgrades(7, "Dropout", "BatchNormalization")
def _is_test(tape: Tape, node: _Parts) -> None:
    """Opset 6 had a switch; later ones train where the optional outputs exist."""
    del tape
    node.take("consumed_inputs")
    if node.take("is_test", 0):
        node.outputs = 1


@_upgrades(9, "BatchNormalization")
def _spatial(tape: Tape, node: _Parts) -> None:
    """Every element of a sample has statistics of its own: each is a channel."""
    if node.take("spatial", 1):
        return
    value, scale = node.tensor(tape), node.tensor(tape, 1)
    node.feed(0, tape.Flatten(value, axis=1))
    for index in range(1, 5):
        operand = node.tensor(tape, index)
        if index > 2:  # noqa: PLR2004 - running statistics are not trained
            (operand,) = tape.custom("ai.graphcore", "Detach", 1, operand)
        node.feed(index, tape.Reshape(operand, [-1]))
    node.after = {0: lambda made: shape_ops.shaped(made, value)}
    node.after |= {
        index: lambda made: shape_ops.shaped(made, scale) for index in range(1, node.outputs)
    }


@_upgrades(14, "BatchNormalization")
def _batch_normalization(tape: Tape, node: _Parts) -> None:
    """More than one output meant training; the later ones were the batch's own statistics."""
    operands = [node.tensor(tape, index) for index in range(5)]
    if operands[3].dtype != operands[4].dtype:
        # PopART takes half precision with a variance in single precision; ONNX takes no such mix.
        types = [operands[index].dtype.value for index in (0, 3, 4)]
        for index, operand in enumerate(operands):
            node.feed(index, tape.Cast(operand, to=ir.DataType.FLOAT.value))
        node.after |= {
            index: partial(tape.Cast, to=types[index]) for index in range(min(node.outputs, 3))
        }
    if any(node.read[3:]):
        x = node.tensor(tape)
        axes = [axis for axis in range(x.rank) if axis != 1]
        middle = tape.ReduceMean(x, axes, keepdims=1)
        squares = tape.ReduceMean((x - middle) * (x - middle), axes, keepdims=0)
        node.beyond = [tape.Squeeze(middle, axes), squares][: node.outputs - 3]
    if node.outputs > 1:
        node.outputs = 3
        node.attributes["training_mode"] = 1


@_upgrades(12, "Dropout")
def _dropout(tape: Tape, node: _Parts) -> None:
    """Since opset 12 ratio and mode are inputs; whether a session trains is its own matter."""
    del tape
    node.feed(1, np.asarray(node.take("ratio", 0.5), np.float32))


@_upgrades(13, "Softmax", "LogSoftmax", "Hardmax")
def _coerced(tape: Tape, node: _Parts) -> None:
    """Before opset 13 everything from the axis on was one dimension."""
    value = node.tensor(tape)
    axis = node.attributes["axis"] = node.take("axis", 1) % max(value.rank, 1)
    if all(dim == 1 for dim in value.lengths[axis + 1 :]):
        return
    node.feed(0, tape.Flatten(value, axis=axis))
    node.attributes["axis"] = 1
    node.after = {0: lambda made: shape_ops.shaped(made, value)}


@_upgrades(13, "Squeeze", "Unsqueeze", "ReduceSum")
@_upgrades(
    18,
    "ReduceMax",
    "ReduceMin",
    "ReduceMean",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)
def _axes(tape: Tape, node: _Parts) -> None:
    del tape
    axes = _ints(node.take("axes"))
    if axes is not None and not axes.size and node.op_type.startswith("Reduce"):
        # PopART reduces over the axes that a list names, be it empty; without a list over all.
        node.attributes["noop_with_empty_axes"] = 1
        node.feed(1, axes)
    elif axes is not None:
        node.feed(1, axes)


@_upgrades(10, "TopK")
def _k(tape: Tape, node: _Parts) -> None:
    del tape
    node.feed(1, np.asarray([node.take("k")], np.int64))


@_upgrades(13, "Split")
def _split(tape: Tape, node: _Parts) -> None:
    del tape
    lengths = _ints(node.take("split"))
    if lengths is not None:
        node.feed(1, lengths)


@_upgrades(18, "Split")
def _split_count(tape: Tape, node: _Parts) -> None:
    del tape
    if len(node.inputs) == 1 or node.inputs[1] is None:
        node.attributes["num_outputs"] = node.outputs


@_upgrades(10, "Slice")
def _slice(tape: Tape, node: _Parts) -> None:
    del tape
    for index, name in enumerate(("starts", "ends", "axes"), start=1):
        content = _ints(node.take(name))
        if content is not None:
            node.feed(index, content)


@_upgrades(11, "Pad")
def _pad(tape: Tape, node: _Parts) -> None:
    node.feed(1, _ints(node.take("pads")))
    node.feed(2, tape.scalar(node.take("value", 0.0), node.tensor(tape).dtype))


@_upgrades(11, "Clip")
def _clip(tape: Tape, node: _Parts) -> None:
    for index, name in enumerate(("min", "max"), start=1):
        limit = node.take(name)
        if limit is not None:
            node.feed(index, tape.scalar(limit, node.tensor(tape).dtype))


@_upgrades(9, "Upsample")
def _upsample_scales(tape: Tape, node: _Parts) -> None:
    del tape
    node.feed(1, np.asarray(node.take("scales"), np.float32))


@_upgrades(11, "Upsample", "Resize")
def _resize(tape: Tape, node: _Parts) -> None:
    """Until opset 10 coordinates were asymmetric and rounded down, in PopART as in torch.

    A builder may note how a node rounds; PopART then counts from the middle of elements.
    """
    mode = node.take("mode", "nearest")
    rounding = json.loads(tape.metadata.get("nearest_mode", "null"))
    scales = node.tensor(tape, 1)
    node.op_type, node.inputs = "Resize", [node.inputs[0], None, scales]
    node.attributes = {
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "half_pixel" if rounding else "asymmetric",
    }
    if mode == "nearest":
        node.attributes["nearest_mode"] = rounding or "pytorch"


@_upgrades(11, "ConvTranspose")
def _conv_transpose(tape: Tape, node: _Parts) -> None:
    """Until opset 10 the larger half of an odd padding stood at the other end."""
    auto = node.attributes.get("auto_pad", "NOTSET")
    x, w = node.tensor(tape), node.tensor(tape, 1)
    wanted = node.attributes.get("output_shape")
    if (wanted is None and not auto.startswith("SAME")) or not (x.static and w.static):
        return
    counts = x.shape[2:]
    ones, none = [1] * len(counts), [0] * len(counts)
    strides = node.attributes.get("strides", ones)
    sizes = (one * stride for one, stride in zip(counts, strides, strict=True))
    lengths = list(sizes if wanted is None else wanted)[-len(counts) :]
    totals = [
        stride * (count - 1) + extra + (size - 1) * dilation + 1 - length
        for stride, count, extra, size, dilation, length in zip(
            strides,
            counts,
            node.attributes.get("output_padding", none),
            node.attributes.get("kernel_shape", w.shape[2:]),
            node.attributes.get("dilations", ones),
            lengths,
            strict=True,
        )
    ]
    if any(total < 0 for total in totals):
        return
    small = [total // 2 for total in totals]
    large = [total - half for total, half in zip(totals, small, strict=True)]
    node.attributes["pads"] = large + small if auto == "SAME_UPPER" else small + large
    node.take("auto_pad")
    node.take("output_shape")


@_upgrades(16, "RoiAlign")
def _roi_align(tape: Tape, node: _Parts) -> None:
    """Until opset 15 regions were not moved by half an element."""
    del tape
    node.attributes["coordinate_transformation_mode"] = "output_half_pixel"


@_upgrades(11, "Scatter")
def _scatter(tape: Tape, node: _Parts) -> None:
    del tape
    node.op_type = "ScatterElements"


@_upgrades(9, "Scan")
def _scan(tape: Tape, node: _Parts) -> None:
    del tape, node
    raise NotOnHostError(
        "PD521",
        "Scan of opset 8, with a batch dimension, has no newer form",
        hint="export the model with opset 9 or newer",
    )


# The whole model.


def upgrade(model: ir.Model) -> None:
    """Upgrades an older model to opset 18, and folds constants after each node.

    A newer form may need a shape that only folding finds.

    Raises:
        NotOnHostError: An old form has no new one.
    """
    opset = model.graph.opset_imports[""]
    _upgrade_graph(model.graph, opset, of_builder=model.producer_name == BUILDER)
    model.graph.opset_imports[""] = WORKING_OPSET
    model.ir_version = max(model.ir_version, 8)


def _upgrade_graph(graph: ir.Graph, opset: int, *, of_builder: bool) -> None:
    tape = Tape(graph, opset=WORKING_OPSET)
    steps: dict[str, list[Upgrade]] = {}
    for since, op_type, function in sorted(_UPGRADES, key=lambda one: one[0]):
        if since > opset or (of_builder and op_type in _AS_BEFORE):
            steps.setdefault(op_type, []).append(function)
    for node in list(graph):
        for inner in subgraphs(node):
            _upgrade_graph(inner, opset, of_builder=of_builder)
        newer = [node]
        if node.domain == "" and node.op_type in steps:
            newer = _upgrade_node(tape, node, opset, steps[node.op_type])
        for one in newer:
            fold_node(tape, one)


def _upgrade_node(tape: Tape, node: ir.Node, opset: int, steps: list[Upgrade]) -> list[ir.Node]:
    parts = _Parts(
        node.op_type,
        list(node.inputs),
        {name: attribute.value for name, attribute in node.attributes.items()},
        len(node.outputs),
        [bool(output.uses()) or output in tape.graph.outputs for output in node.outputs],
    )
    tape.metadata = {ORIGIN: f"{node.op_type}-{opset}", **node.metadata_props}
    with tape.at(node, f"{node.outputs[0].name}/"):
        for step in steps:
            step(tape, parts)
        made = tape.many(parts.op_type, parts.outputs, *parts.inputs, **parts.attributes)
        newer = [made[0].value.producer()]
        if parts.after:
            made = tuple(
                parts.after[index](one) if index in parts.after else one
                for index, one in enumerate(made)
            )
            newer += [made[index].value.producer() for index in parts.after if index < len(made)]
        tape.substitute(node, [*made, *parts.beyond])
    return [one for one in newer if one is not None]
