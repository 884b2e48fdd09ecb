"""Whether the operands of layers fit each other, where ONNX's shape inference does not look.

ONNX infers the shape of a convolution or a normalisation from some operands only. Weights of
another shape then fail much later: in the update, or as ONNX Runtime's own text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import ValueRangeError
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.values import dims

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

_MATRIX = 2

_RULES: dict[str, Callable[[ir.Node], str | None]] = {}


def require_operands(graph: ir.Graph) -> None:
    """Refuses nodes of ``ai.onnx`` whose operands do not fit each other, also in sub-graphs.

    Raises:
        ValueRangeError: The operands of a node do not fit each other.
    """
    for node in graph:
        require_operands_of(node)
        for inner in subgraphs(node):
            require_operands(inner)


def require_operands_of(node: ir.Node) -> None:
    """The same for one node; shapes that are not known are taken to fit."""
    rule = _RULES.get(node.op_type) if not node.domain else None
    if rule is None or (complaint := rule(node)) is None:
        return
    raise ValueRangeError(
        "PD510",
        f"the operands of {node.op_type} do not fit each other: {complaint}",
        value={str(one.name): dims(one) for one in node.inputs if one is not None},
        hint=f"look at '{node.outputs[0].name}' in the model",
    )


def _rule(
    *op_types: str,
) -> Callable[[Callable[[ir.Node], str | None]], Callable[[ir.Node], str | None]]:
    def register(function: Callable[[ir.Node], str | None]) -> Callable[[ir.Node], str | None]:
        _RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


def _shape(node: ir.Node, index: int) -> tuple[int, ...] | None:
    """The lengths of an operand; None where the operand is missing or a length is not known."""
    value = node.inputs[index] if index < len(node.inputs) else None
    known = None if value is None else dims(value)
    if known is None or not all(isinstance(one, int) for one in known):
        return None
    return tuple(int(one or 0) for one in known)


@_rule("BatchNormalization", "InstanceNormalization")
def _normalization(node: ir.Node) -> str | None:
    x = node.inputs[0]
    known = None if x is None else dims(x)
    if not known or len(known) < _MATRIX or not isinstance(known[1], int):
        return None
    every = node.attributes.get_int("spatial", 1) == 0
    wanted = list(known[1:]) if every else [known[1]]
    names = ("scale", "bias", "mean", "variance")
    for name, index in zip(names, range(1, len(node.inputs)), strict=False):
        found = _shape(node, index)
        if found is not None and list(found) != wanted and all(isinstance(n, int) for n in wanted):
            return f"its {name} has shape {list(found)}, but must have {wanted}"
    operands, statistics = list(node.inputs[1:3]), list(node.inputs[3:5])
    trains = len(node.outputs) > 1 and statistics
    if trains and (len(set(statistics)) == 1 or not set(statistics).isdisjoint(operands)):
        return "in training, mean and variance change and need tensors of their own"
    return None


@_rule("Conv", "ConvTranspose")
def _convolution(node: ir.Node) -> str | None:
    x, w, bias = (_shape(node, index) for index in range(3))
    if x is None or w is None:
        return None
    if len(x) != len(w):
        return f"the input has {len(x)} dimensions, the weights have {len(w)}"
    group = node.attributes.get_int("group", 1)
    turned = node.op_type == "ConvTranspose"
    channels = w[0] if turned else w[1] * group
    if x[1] != channels:
        return f"the input has {x[1]} channels, the weights in {group} group(s) take {channels}"
    made = w[1] * group if turned else w[0]
    if not turned and w[0] % group:
        return f"{w[0]} output channels do not divide into {group} groups"
    if bias is not None and bias != (made,):
        return f"the bias has shape {list(bias)}, one number per output channel is [{made}]"
    return None


@_rule("Gemm")
def _gemm(node: ir.Node) -> str | None:
    a, b, c = (_shape(node, index) for index in range(3))
    if a is None or b is None or len(a) != _MATRIX or len(b) != _MATRIX:
        return None
    rows, inner = reversed(a) if node.attributes.get_int("transA", 0) else a
    other, columns = reversed(b) if node.attributes.get_int("transB", 0) else b
    if inner != other:
        return f"a product of [{rows}, {inner}] and [{other}, {columns}]"
    made = (rows, columns)
    if c is not None and (
        len(c) > _MATRIX
        or any(one not in (1, all_) for one, all_ in zip(c[::-1], made[::-1], strict=False))
    ):
        return f"the third one, {list(c)}, cannot be broadcast to {list(made)}"
    return None


@_rule("LSTM", "GRU", "RNN")
def _recurrent(node: ir.Node) -> str | None:
    x, w, r = (_shape(node, index) for index in range(3))
    if x is None or w is None or r is None or not len(x) == len(w) == len(r) == _MATRIX + 1:
        return None
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type]
    if w[1:] != (gates * r[2], x[2]) or r[1] != gates * r[2]:
        wanted = f"[{w[0]}, {gates} * hidden, {x[2]}] and [{w[0]}, {gates} * hidden, hidden]"
        return f"for {x[2]} features, weights are {wanted}"
    return None


@_rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: ir.Node) -> str | None:
    x = node.inputs[0]
    known = None if x is None else dims(x)
    axis = node.attributes.get("axis")
    if known and axis is not None and not -len(known) <= axis.as_int() <= len(known):
        return f"a tensor of {len(known)} dimensions has no axis {axis.as_int()}"
    return None
