"""PopART's own sentences for operands that do not fit each other.

Programs compare an error's first argument with them. An operator without one here has the sentence
of ONNX's shape inference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from popdist_onnx.errors import ValueRangeError
from popdist_onnx.graph.names import OPSET
from popdist_onnx.graph.values import constant, dims, lengths, operand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

_SENTENCES: dict[str, Callable[[ir.Node, int], str | None]] = {}


def misfit(node: ir.Node, complaint: str, opset: int | None = None) -> ValueRangeError:
    """The error for a node whose operands do not fit each other.

    Args:
        node: The node.
        complaint: What is wrong, in our words or in those of ONNX's inference.
        opset: The version of ``ai.onnx``; None takes the one that the file was written in.

    Returns:
        The error. Its first argument is PopART's sentence, where there is one.
    """
    if opset is None:
        graph = node.graph
        opset = 0 if graph is None else graph.meta.get(OPSET) or graph.opset_imports.get("", 0)
    find = None if node.domain else _SENTENCES.get(node.op_type)
    sentence = None if find is None else find(node, int(opset))
    seen = {str(one.name): dims(one) for one in node.inputs if one is not None}
    place = f"check '{node.outputs[0].name}' in the model"
    if sentence is not None:
        return ValueRangeError("PD510", sentence, value=seen, hint=f"{complaint}; {place}")
    return ValueRangeError(
        "PD510",
        f"the operands of {node.op_type} do not fit each other: {complaint}",
        value=seen,
        hint=place,
    )


def negative_shape(node: ir.Node, opset: int) -> ValueRangeError:
    """The error for a node whose result would have a negative dimension.

    Args:
        node: The node.
        opset: The version of ``ai.onnx``.

    Returns:
        The error.
    """
    if _SENTENCES.get(node.op_type) is _window:
        return misfit(node, "the result would have a negative dimension", opset)
    wrong = next(one for one in node.outputs if any(n < 0 for n in _shape(one) or ()))
    return ValueRangeError(
        "PD510",
        f"Output '{wrong.name}' of node '{operator(node, opset)}' has invalid shape, "
        f"{_spaced(_shape(wrong) or ())}. Values must be non-negative in each shape dimension.",
    )


def operator(node: ir.Node, opset: int) -> str:
    """A node as PopART's messages name it: operator, version, inputs and outputs."""
    try:
        version: object = onnx.defs.get_schema(node.op_type, opset or 1, "").since_version
    except onnx.defs.SchemaError:
        version = opset
    inputs = ", ".join(str(one.name) for one in node.inputs if one is not None)
    outputs = ", ".join(str(one.name) for one in node.outputs)
    return f"Op(ai.onnx.{node.op_type}:{version}, inputs=[{inputs}], outputs=[{outputs}])"


def _for(
    *op_types: str,
) -> Callable[[Callable[[ir.Node, int], str | None]], Callable[[ir.Node, int], str | None]]:
    def register(
        function: Callable[[ir.Node, int], str | None],
    ) -> Callable[[ir.Node, int], str | None]:
        _SENTENCES.update(dict.fromkeys(op_types, function))
        return function

    return register


def wrong_axis(axes: Sequence[int], rank: int) -> str | None:
    """The sentence for the first axis that a tensor does not have."""
    wrong = [axis for axis in axes if not -rank <= axis < rank]
    return f"Axis {wrong[0]} is out of acceptable range [{-rank}, {rank - 1}]" if wrong else None


def _shape(value: ir.Value | None) -> list[int] | None:
    known = None if value is None else lengths(value)
    return None if known is None else list(known)


def _spaced(shape: Sequence[int]) -> str:
    return f"[{' '.join(map(str, shape))}]"


@_for(*(f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min")))
@_for("ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin")
def _reduction(node: ir.Node, _opset: int) -> str | None:
    known = _shape(node.inputs[0])
    axes = [*node.attributes.get_ints("axes", ())]
    second = operand(node, 1)
    given = None if second is None else constant(second)
    axes += [] if given is None else [int(one) for one in given]
    if "axis" in node.attributes:
        axes.append(node.attributes.get_int("axis", 0))
    return None if known is None else wrong_axis(axes, len(known))


@_for("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "Greater", "And", "Or", "Xor")
def _broadcast(node: ir.Node, opset: int) -> str | None:
    first, second = node.inputs
    shapes = [_shape(one) for one in (first, second)]
    if shapes[0] is None or shapes[1] is None or first is None or second is None:
        return None
    name = operator(node, opset)
    if node.op_type != "Pow" and first.dtype and second.dtype and first.dtype != second.dtype:
        return (
            f"np broadcasting failed on {name}, incompatible types {first.dtype.name} and "
            f"{second.dtype.name} (shapes {_spaced(shapes[0])} and {_spaced(shapes[1])})"
        )
    return f"np broadcasting failed on '{name}', frames {shapes[0]} and {shapes[1]} are not aligned"


@_for("MatMul")
def _product(node: ir.Node, opset: int) -> str | None:
    shapes = [_shape(one) for one in node.inputs]
    name = operator(node, opset)
    for shape, value, side in zip(shapes, node.inputs, ("lhs", "rhs"), strict=True):
        if shape == [] and value is not None:
            return f"{name} doesn't support scalar tensor {value.name} as the {side} input"
    left, right = (
        f"'{one.name}' {_spaced(shape or ())}" if one is not None else ""
        for one, shape in zip(node.inputs, shapes, strict=True)
    )
    return f"{name} contracting dimensions unequal: lhs {left}, rhs {right}"


@_for("Expand")
def _expansion(_node: ir.Node, _opset: int) -> str:
    return (
        "Expand shape constraint: corresponding dimensions must have the same value or one of "
        "them must be 1"
    )


@_for("Reshape")
def _reshape(node: ir.Node, _opset: int) -> str | None:
    wanted = node.inputs[1] and constant(node.inputs[1])
    if wanted is None or np.count_nonzero(np.asarray(wanted) == -1) <= 1:
        return None
    return "shape input to ReshapeOp can only use -1 to specify one unknown dimension"


@_for("Tile")
def _repeats(node: ir.Node, _opset: int) -> str | None:
    value, known = node.inputs[1], _shape(node.inputs[0])
    repeats = None if value is None else constant(value)
    if repeats is None or known is None or value is None:
        return None
    negative = [index for index, one in enumerate(repeats) if one < 0]
    if negative:
        index = negative[0]
        return (
            f"'Repeats' tensor `{value.name}' has invalid value `{repeats[index]}' at index {index}"
        )
    if len(repeats) == len(known):
        return None
    return (
        f"'Repeats' tensor `{value.name}' should have one element for each dimension of the data "
        "tensor"
    )


def wrong_length(name: str, length: int, dimensions: int) -> str:
    """The sentence for a list that should have a number for each spatial dimension."""
    return f"Length of {name} vector {length} != number of spatial dimensions {dimensions}"


@_for("AveragePool", "MaxPool", "Conv", "LpPool")
def _window(node: ir.Node, _opset: int) -> str | None:
    known, pads = _shape(node.inputs[0]), node.attributes.get_ints("pads", ())
    if known is None:
        return None
    count = len(known) - 2
    if pads and len(pads) != 2 * count:
        return (
            f"Padding vector (length {len(pads)}) does not have 2 values for each spatial "
            f"dimension {count}"
        )
    for name in ("strides", "dilations"):
        numbers = node.attributes.get_ints(name, ())
        if numbers and len(numbers) != count:
            return wrong_length(name, len(numbers), count)
    weights = node.inputs[1] if node.op_type == "Conv" else None
    inferred = (_shape(weights) or [])[2:]
    kernel = node.attributes.get_ints("kernel_shape", inferred)
    if weights is not None and inferred and list(kernel) != inferred:
        return (
            f"kernel_shape, {_spaced(kernel)}, does not match inferred shape from weight input "
            f"'{weights.name}', {_spaced(inferred)}"
        )
    made = _shape(node.outputs[0]) or []
    if any(length < 0 for length in made):
        return (
            "Window parameter values combine to give invalid spatial output shape: "
            f"{_spaced(made[2:])}"
        )
    return None


@_for("Pad")
def _padding(node: ir.Node, _opset: int) -> str | None:
    known, pads = _shape(node.inputs[0]), node.attributes.get_ints("pads", ())
    if known is None or not pads or len(pads) == 2 * len(known):
        return None
    return (
        f"Padding vector (length {len(pads)}) doesn't contain 2 entries per input dimension "
        f"{len(known)}"
    )


@_for("Transpose")
def _permutation(node: ir.Node, _opset: int) -> str | None:
    known, order = _shape(node.inputs[0]), node.attributes.get_ints("perm", ())
    if known is None or not order or len(order) == len(known):
        return None
    return (
        f"Rank of permutation tensor {_spaced(order)}, rank {len(order)} must be equal to rank "
        f"of input tensor, shape {_spaced(known)}, rank {len(known)}."
    )
