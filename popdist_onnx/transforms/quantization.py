"""Quantized models: what of them trains, and how.

A `QuantizeLinear` whose result is dequantized at once, with the same scale and zero point, rounds
numbers and keeps their type. Such a pair trains as fake quantization: the forward pass is as
written, and the gradient passes where the number is in range. Exporters write such pairs for
quantization-aware training (`torch.fake_quantize_per_tensor_affine`), quantizers around every
operator. Everything else that works on whole numbers has no gradient. It is refused where a weight
before it would no longer train.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.gradients.registry import described, rule_of
from popdist_onnx.graph.compat import FLOATING, captured, subgraphs
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import constant, dims, operand
from popdist_onnx.lowering.registry import DOMAIN
from popdist_onnx.transforms.autodiff import frozen_of, variables
from popdist_onnx.transforms.loss import loss_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

logger = logging.getLogger("popdist.onnx")

_OF_RUNTIME = "com.microsoft"
_DOMAINS = ("", _OF_RUNTIME)
"""ONNX Runtime's quantizer writes 16 bits into its own domain before opset 21."""

_RANGES = {
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-(2**15), 2**15 - 1),
    ir.DataType.UINT16: (0, 2**16 - 1),
}
"""The smallest and the largest number of a type; 8-bit floats are no whole numbers."""

_STORED: dict[str, Collection[int]] = {
    "ConvInteger": (1,),
    "DequantizeLinear": (0,),
    "MatMulInteger": (0, 1),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (0, 3),
}
"""Inputs where a file stores weights as whole numbers."""

_PLAIN_SCALES = ("ConvInteger", "MatMulInteger")
"""Their scales are factors of a product behind them, which would train like weights."""

_KERNELS = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
_QUANTIZERS = ("DynamicQuantizeLinear", "QuantizeLinear")

_CASTS = ("Cast", "CastLike")

_AXIS = 1
"""The axis of a node without the attribute."""

_RUNTIME_KERNELS = ("DynamicQuantize", "MatMulInteger", "QAttention", "QEmbed", "QGemm", "QLinear")
"""How the names of ONNX Runtime's own operators on whole numbers begin."""

_SHOWN = 6

KEEP_FLOATS = (
    "extra_options={'AddQDQPairToWeight': True, 'QuantizeBias': False} of onnxruntime's "
    "quantize_static keeps weights that train"
)
"""What to do about a file whose weights are whole numbers."""


def pair_quantization(model: ir.Model) -> ir.Model:
    """Writes each `QuantizeLinear` with its `DequantizeLinear` as one node, ``FakeQuantize``.

    Args:
        model: The model, changed in place; its types are known.

    Returns:
        The model.
    """
    if _pair(model.graph, model.graph.opset_imports[""]):
        model.graph.opset_imports.setdefault(DOMAIN, 1)
    return model


def _pair(graph: ir.Graph, opset: int) -> bool:
    tape, found = Tape(graph, opset=opset), False
    for node in list(graph):
        for inner in subgraphs(node):
            found |= _pair(inner, opset)
        source = _source(node)
        if source is None:
            continue
        x, low, high = source
        settings = {"low": low, "high": high, "axis": node.attributes.get_int("axis", _AXIS)}
        with tape.at(node, f"{node.name or node.outputs[0].name}/", node.metadata_props):
            made = tape.custom(DOMAIN, "FakeQuantize", 2, x, *node.inputs[1:], **settings)
        tape.substitute(node, made[:1])
        found = True
    return found


def _source(node: ir.Node) -> tuple[ir.Value, int, int] | None:
    """What a node dequantizes, with the limits of the whole numbers; None where it is no pair."""
    if not _is(node, "DequantizeLinear") or (quantized := node.inputs[0]) is None:
        return None
    limits = _RANGES.get(quantized.dtype) if quantized.dtype is not None else None
    before = quantized.producer()
    if before is not None and before.op_type == "Clip" and limits is not None:
        # torch writes a range that is narrower than the type as a Clip of whole numbers.
        limits = _clipped(before, *limits)
        before = before.inputs[0].producer() if before.inputs[0] is not None else None
    if limits is None or before is None or before.domain != node.domain:
        return None
    if before.op_type == "DynamicQuantizeLinear":
        same = list(node.inputs[1:]) == list(before.outputs[1:])
    else:
        same = _is(before, "QuantizeLinear") and _same_scale(before, node)
    x = before.inputs[0]
    fits = x is not None and x.dtype in FLOATING and x.dtype == node.outputs[0].dtype
    return (x, *limits) if x is not None and same and fits else None


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in _DOMAINS


def _clipped(node: ir.Node, low: int, high: int) -> tuple[int, int] | None:
    given = [*node.inputs[1:], None, None][:2]
    known = [None if one is None else constant(one) for one in given]
    if any(one is not None and number is None for one, number in zip(given, known, strict=True)):
        return None
    lower, upper = (
        default if number is None else int(number.item())
        for number, default in zip(known, (low, high), strict=True)
    )
    return max(low, lower), min(high, upper)


def _same_scale(one: ir.Node, other: ir.Node) -> bool:
    scale, zero = one.inputs[1], _zero_point(one)
    known = None if scale is None else dims(scale)
    if known is None or len(known) > 1:
        return False
    pairs = [(scale, other.inputs[1]), (zero, _zero_point(other))]
    if not all(_equal(a, b) for a, b in pairs):
        return False
    x = one.inputs[0]
    rank = None if x is None or x.shape is None else len(x.shape)
    axes = [node.attributes.get_int("axis", _AXIS) for node in (one, other)]
    if rank:
        axes = [axis % rank for axis in axes]
    blocks = [node.attributes.get_int("block_size", 0) for node in (one, other)]
    return not known or known == (1,) or (axes[0] == axes[1] and not any(blocks))


def _zero_point(node: ir.Node) -> ir.Value | None:
    """The zero point; None where it is left out or zero."""
    value = operand(node, 2)
    content = None if value is None else constant(value)
    return None if content is not None and not np.any(content) else value


def _equal(one: ir.Value | None, other: ir.Value | None) -> bool:
    # torch's exporter casts a scale once for each of the two nodes.
    while one is not other and one is not None and other is not None:
        nodes = [one.producer(), other.producer()]
        if any(node is None or node.op_type not in _CASTS for node in nodes):
            break
        if one.dtype != other.dtype or one.dtype is None:
            return False
        one, other = (None if node is None else node.inputs[0] for node in nodes)
    if one is other:
        return True
    if one is None or other is None:
        return False
    known = [_content(value) for value in (one, other)]
    return all(array is not None for array in known) and bool(np.array_equal(*known))  # type: ignore[arg-type]


def _content(value: ir.Value) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
    found = constant(value)
    if found is None and value.const_value is not None and not value.is_graph_input():
        # Scales are not trained, so that those that initializers hold stay as they are.
        found = np.asarray(value.const_value.numpy())
    return found


# What is refused.


def require_trainable_quantization(model: ir.Model) -> ir.Model:
    """Checks that no weight is cut off from the loss by whole numbers.

    Raises:
        popart_exception: A `QuantizeLinear` or an operator on whole numbers is between a weight and
            the loss; all of them are named.
    """
    graph = model.graph
    if not any(_works_on_whole_numbers(node) for node in graph.all_nodes()):
        return model
    reached = set(variables(graph, frozen_of(model)))
    cut: list[ir.Node] = []
    for node in graph:
        cut += _cut(node, reached)
    to_loss = {loss_of(model)}
    for node in reversed(list(graph)):
        if not to_loss.isdisjoint(node.outputs) and not _stops(node):
            to_loss.update(_read(node))
    lost = [node for node in cut if not to_loss.isdisjoint(_outside(node, graph).outputs)]
    if lost:
        raise _refused([described(node) for node in lost])
    return model


def require_known_kernels(model: ir.Model) -> None:
    """Checks that a model to be trained has no operator on whole numbers of ONNX Runtime's own.

    Nothing says of what types and shapes their results are.

    Raises:
        popart_exception: There are some; all of them are named.
    """
    found = [
        f"node {node.name or node.outputs[0].name!r} ({node.domain} {node.op_type})"
        for node in model.graph
        if node.domain == _OF_RUNTIME and node.op_type.startswith(_RUNTIME_KERNELS)
    ]
    if found:
        raise _refused(found)


def _refused(nodes: Sequence[str]) -> popart_exception:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return popart_exception(
        "PD598",
        "weights before operators on whole numbers would not train",
        value=", ".join(nodes[:_SHOWN]) + more,
        accepted="QuantizeLinear that DequantizeLinear follows at once, with the same scale, "
        "zero point and axis, of 4, 8 or 16 bits",
        hint="train the model before it is quantized, or quantize to pairs: quant_format="
        "QuantFormat.QDQ of onnxruntime's quantize_static, fake quantization in torch; or "
        "freeze the weights before these nodes",
    )


def _works_on_whole_numbers(node: ir.Node) -> bool:
    return node.domain in _DOMAINS and node.op_type in (*_KERNELS, *_QUANTIZERS)


def _stops(node: ir.Node) -> bool:
    """Whether a node's result does not change with its inputs, for a reason other than rounding."""
    rule = rule_of(node)
    quantizing = _works_on_whole_numbers(node) or _is(node, "DequantizeLinear")
    return rule is not None and rule.function is None and not quantizing


def _cut(node: ir.Node, reached: set[ir.Value]) -> Iterator[ir.Node]:
    """The operators of a node that take gradients away; notes what depends on weights."""
    touched = not reached.isdisjoint(_read(node))
    if touched and not _stops(node):
        reached.update(node.outputs)
    if _works_on_whole_numbers(node) and (touched or node.op_type in _PLAIN_SCALES):
        yield node
    for graph in subgraphs(node) if touched else ():
        yield from (
            one for one in graph.all_nodes() if _works_on_whole_numbers(one) and _read_on(one)
        )


def _read_on(node: ir.Node) -> bool:
    return any(output.uses() or output.is_graph_output() for output in node.outputs)


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """The inputs that a result depends on, scales and other settings left out."""
    rule = rule_of(node)
    if _works_on_whole_numbers(node) or _is(node, "DequantizeLinear"):
        places: Collection[int] | None = _STORED.get(node.op_type, (0,))
    else:
        places = None if rule is None else rule.inputs
    for index, value in enumerate(node.inputs):
        if value is not None and (places is None or index in places):
            yield value
    yield from captured(node)


def _outside(node: ir.Node, graph: ir.Graph) -> ir.Node:
    """The node of a graph that holds a node, or the node itself."""
    if node.graph is graph:
        return node
    return next(one for one in graph if any(node in inner.all_nodes() for inner in subgraphs(one)))


# What files store as whole numbers.


def stored_integers(model: ir.Model) -> list[str]:
    """The initializers that operators read as quantized weights: they are not trained.

    Args:
        model: The model.

    Returns:
        Their names, in the order of their first readers.
    """
    kinds = {*_RANGES, ir.DataType.INT32}
    read = (
        value
        for node in model.graph
        for index in _STORED.get(node.op_type, ())
        if (value := operand(node, index)) is not None
    )
    found = (one for one in read if one.is_initializer() and one.dtype in kinds)
    return list(dict.fromkeys(str(one.name) for one in found))


def warn_of_stored_integers(model: ir.Model) -> None:
    """Reports weights that a file about to be trained stores as whole numbers."""
    if stored := stored_integers(model):
        more = f" and {len(stored) - _SHOWN} more" if len(stored) > _SHOWN else ""
        logger.warning(
            "%d weights of the model are stored as whole numbers and are not trained: %s; %s",
            len(stored),
            ", ".join(stored[:_SHOWN]) + more,
            KEEP_FLOATS,
        )
