"""Whether the operands of layers fit each other, where ONNX's shape inference does not look.

ONNX infers the shape of a convolution or a normalisation from some operands only. Weights of
another shape then fail much later: in the update, or as ONNX Runtime's own text. Some operands make
no error at all: a pool whose window is longer than its input has no output, and a stride of 0 ends
the process.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from popdist_onnx.graph.attention import misfit as attention_misfit
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.names import FAILED_INFERENCE
from popdist_onnx.graph.published import misfit
from popdist_onnx.graph.values import constant, dims, lengths, operand, static

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

_MATRIX = 2

_RULES: dict[str, Callable[[ir.Node], str | None]] = {}

_SINCE = {"PRelu": 7, "Scan": 9}
"""The opset from which a rule applies: older slopes and scans have another form."""


def require_operands(graph: ir.Graph, opset: int) -> None:
    """Refuses nodes of ``ai.onnx`` whose operands do not fit each other, also in sub-graphs.

    Raises:
        ValueRangeError: The operands of a node do not fit each other.
    """
    for node in graph:
        require_operands_of(node, opset)
        for inner in subgraphs(node):
            require_operands(inner, opset)


def require_operands_of(node: ir.Node, opset: int) -> None:
    """The same for one node; shapes that are not known are taken to fit."""
    rule = _RULES.get(node.op_type) if not node.domain else None
    if opset < _SINCE.get(node.op_type, 0):
        return
    if rule is not None and (complaint := rule(node)) is not None:
        raise misfit(node, complaint, opset)


def require_steps(node: ir.Node) -> None:
    """Refuses strides, dilations and heads below 1, by which onnx's own shape inference divides.

    Raises:
        ValueRangeError: There are some.
    """
    for name in () if node.domain else ("strides", "dilations"):
        numbers = node.attributes.get_ints(name, ())
        if any(number < 1 for number in numbers):
            raise misfit(node, f"{name} is {list(numbers)}, must be numbers of 1 or more")
    for name in () if node.domain else ("q_num_heads", "kv_num_heads"):
        if node.attributes.get_int(name, 1) < 1:
            raise misfit(node, f"{name} must be 1 or more")


def require_inferred(graph: ir.Graph) -> None:
    """Refuses nodes whose shape inference failed although all their operands have known shapes.

    Element types that an operator does not have are for the session to refuse.

    Raises:
        ValueRangeError: There is such a node.
    """
    for node in graph:
        reason = str(node.meta.get(FAILED_INFERENCE, "")) if node.inputs else ""
        known = all(value is None or static(value) for value in node.inputs)
        if reason and known and "unsupported type" not in reason:
            raise misfit(node, reason)
        for inner in subgraphs(node):
            require_inferred(inner)


def _rule(
    *op_types: str,
) -> Callable[[Callable[[ir.Node], str | None]], Callable[[ir.Node], str | None]]:
    def register(function: Callable[[ir.Node], str | None]) -> Callable[[ir.Node], str | None]:
        _RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


def _shape(node: ir.Node, index: int) -> tuple[int, ...] | None:
    """The lengths of an operand; None where the operand is missing or a length is not known."""
    value = operand(node, index)
    return None if value is None else lengths(value)


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
    made = w[1] * group if turned else w[0]
    kernel = node.attributes.get_ints("kernel_shape", w[2:])
    complaint = None
    if x[1] != channels:
        complaint = (
            f"the input has {x[1]} channels, the weights in {group} group(s) take {channels}"
        )
    elif not turned and w[0] % group:
        complaint = f"{w[0]} output channels do not divide into {group} groups"
    elif bias is not None and bias != (made,):
        complaint = f"the bias has shape {list(bias)}, one number per output channel is [{made}]"
    elif tuple(kernel) != w[2:]:
        complaint = f"kernel_shape is {list(kernel)}, the weights are {list(w[2:])} wide"
    return complaint or _windows(node, x[2:], w[2:])


@_rule("MaxPool", "AveragePool", "LpPool")
def _pool(node: ir.Node) -> str | None:
    x = _shape(node, 0)
    kernel = node.attributes.get_ints("kernel_shape", None)
    if x is None or kernel is None:
        return None
    if len(kernel) != len(x) - _MATRIX:
        return f"kernel_shape has {len(kernel)} numbers for {len(x) - _MATRIX} axes of an image"
    return _windows(node, x[2:], kernel)


def _windows(node: ir.Node, lengths: Sequence[int], kernel: Sequence[int]) -> str | None:
    """What is wrong with windows that slide over axes."""
    count = len(lengths)
    strides, dilations, pads = (
        node.attributes.get_ints(name, [default] * times)
        for name, default, times in (
            ("strides", 1, count),
            ("dilations", 1, count),
            ("pads", 0, 2 * count),
        )
    )
    named = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    for name, numbers in named.items():
        if len(numbers) != count or any(number < 1 for number in numbers):
            return f"{name} is {list(numbers)}, must be {count} numbers of 1 or more"
    if len(pads) != 2 * count:
        return f"pads is {list(pads)}, must be {2 * count} numbers"
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    if node.op_type == "ConvTranspose" or automatic not in ("NOTSET", "VALID") or 0 in lengths:
        return None
    for axis, (length, size, dilation) in enumerate(zip(lengths, kernel, dilations, strict=True)):
        padding = pads[axis] + pads[axis + count] if automatic == "NOTSET" else 0
        reach = (size - 1) * dilation + 1
        if reach > length + padding:
            wide = f"{size} elements" + (f" and dilation {dilation}" if dilation > 1 else "")
            padded = f"{length} elements" + (f" and padding {padding}" if padding else "")
            return f"a window of {wide} is longer than axis {axis + 2} of {padded}"
    return None


@_rule("PRelu")
def _slope(node: ir.Node) -> str | None:
    x, slope = _shape(node, 0), _shape(node, 1)
    if x is None or slope is None:
        return None
    fits = len(slope) <= len(x) and all(
        one in (1, all_) for one, all_ in zip(slope[::-1], x[::-1], strict=False)
    )
    if fits:
        return None
    return (
        f"a slope of shape {list(slope)} cannot be broadcast to {list(x)}; one number per channel"
        f" has shape {[*x[1:2], *[1] * (len(x) - _MATRIX)]}"
    )


@_rule("Reshape")
def _reshape(node: ir.Node) -> str | None:
    x, target = _shape(node, 0), operand(node, 1)
    wanted = None if target is None else constant(target)
    if x is None or wanted is None:
        return None
    keeps = not node.attributes.get_int("allowzero", 0)
    shape = [
        x[place] if one == 0 and keeps and place < len(x) else int(one)
        for place, one in enumerate(wanted.reshape(-1))
    ]
    known = math.prod(one for one in shape if one != -1)
    count = math.prod(x)
    fits = count == known if -1 not in shape else known == 0 or count % known == 0
    return (
        None if fits else f"{count} elements of {list(x)} do not fill the shape {wanted.tolist()}"
    )


@_rule("DepthToSpace", "SpaceToDepth")
def _blocks(node: ir.Node) -> str | None:
    x, size = _shape(node, 0), node.attributes.get_int("blocksize", 1)
    if x is None or len(x) != 2 * _MATRIX or size < 1:
        return None
    if node.op_type == "DepthToSpace" and x[1] % (size * size):
        return f"{x[1]} channels do not divide into blocks of {size} x {size}"
    if node.op_type == "SpaceToDepth" and (x[2] % size or x[3] % size):
        return f"{x[2]} x {x[3]} pixels do not divide into blocks of {size} x {size}"
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


_rule("Attention")(attention_misfit)


@_rule("Scan")
def _states(node: ir.Node) -> str | None:
    body = node.attributes["body"].as_graph()
    count = len(body.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    for value, result in zip(list(body.inputs)[:count], body.outputs, strict=False):
        first, last = dims(value), dims(result)
        if first is None or last is None:
            continue
        pairs = zip(first, last, strict=False)
        known = [
            one == other for one, other in pairs if isinstance(one, int) and isinstance(other, int)
        ]
        if len(first) != len(last) or not all(known):
            return (
                f"the state '{value.name}' has shape {list(first)}, and the body returns "
                f"{list(last)} for it (slices of an untyped input keep the scanned axis)"
            )
    return None


@_rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: ir.Node) -> str | None:
    x = node.inputs[0]
    known = None if x is None else dims(x)
    axis = node.attributes.get("axis")
    if known and axis is not None and not -len(known) <= axis.as_int() <= len(known):
        return f"a tensor of {len(known)} dimensions has no axis {axis.as_int()}"
    return None
