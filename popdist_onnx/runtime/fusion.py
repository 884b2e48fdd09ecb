"""Rewrites the matrix products of a training graph for ONNX Runtime's kernels.

Plain SGD updates are folded into the products that compute the gradients: ``g = A'B; w - s g``
becomes one ``Gemm`` with w as its third operand, the gradient is never stored, and the weight is
read and written once. The smaller operand is scaled by s; where s is a constant, ``alpha`` is.

The new weight may overwrite the old one only after all other readers of the old one (see `wiring`).
The matrix product of the layer's backward pass is such a reader, and no data flow puts it first. So
s, or the shape of an operand, is made to depend on the result of that product, by a ``Where`` that
always selects s.

A product whose result is transposed exchanges its operands instead. Of large products, a transposed
left operand is written out, once: the kernel would transpose it again for every few columns of the
result, which took a fifth longer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph import names
from popdist_onnx.graph.compat import captured
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import constant, lengths, static

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from popdist_onnx.graph.tensor import Tensor

_MOST_SCALED = 2
"""How many times larger than the weight an operand may be to be scaled in its place."""

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
"""Operators whose result has the same numbers in the same order."""

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


_LARGE_RESULT = 1 << 20
"""Above so many elements of the result, transposing the left operand once pays."""


def fuse_updates(model: ir.Model, keep: Collection[str]) -> None:
    """Folds updates in a graph of micro-batch and update together; ``keep`` tensors stay."""
    graph = model.graph
    tape = Tape(graph)
    nested = {node: set(found) for node in graph if (found := captured(node))}
    for output in list(graph.outputs):
        node = output.producer()
        if node is not None and str(output.name).startswith(names.UPDATED):
            _fuse(tape, node, nested, keep)


def exchange_operands(model: ir.Model, keep: Collection[str]) -> None:
    """Lets products compute the transposed result that alone is read; ``keep`` tensors stay."""
    graph = model.graph
    tape = Tape(graph)
    for node in list(graph):
        product = node.inputs[0].producer() if node.op_type == "Transpose" else None  # type: ignore[union-attr]
        if product is None or list(node.attributes.get_ints("perm", [1, 0])) != [1, 0]:
            continue
        if not _is_plain_product(product) or not _only_here(product.outputs[0], keep):
            continue
        right, left = product.inputs[:2]
        with tape.at(node, scope=f"{node.name}/", metadata=dict(node.metadata_props)):
            exchanged = tape.Gemm(
                left,
                right,
                transA=1 - product.attributes.get_int("transB", 0),
                transB=1 - product.attributes.get_int("transA", 0),
            )
            tape.substitute(node, [exchanged])
        graph.remove(product, safe=True)


def write_out_transposed(model: ir.Model) -> None:
    """Transposes the left operands of large products by nodes of their own."""
    tape = Tape(model.graph)
    for node in list(model.graph):
        if node.op_type != "Gemm" or not node.attributes.get_int("transA", 0):
            continue
        left = node.inputs[0]
        if left is None or not static(left) or not static(node.outputs[0]):
            continue
        matrix = tape.wrap(left)
        if _size(tape.wrap(node.outputs[0])) <= _LARGE_RESULT:
            continue
        rows, columns = matrix.shape
        with tape.at(node, scope=f"{node.name}/", metadata=dict(node.metadata_props)):
            # ONNX Runtime would fuse the transposition of a matrix into the product again.
            stack = tape.Reshape(matrix, tape.ints(1, rows, columns))
            turned = tape.Transpose(stack, perm=[0, 2, 1])
            node.replace_input_with(0, tape.Reshape(turned, tape.ints(columns, rows)).value)
        node.attributes["transA"] = ir.AttrInt64("transA", 0)


def _fuse(
    tape: Tape,
    update: ir.Node,
    nested: Mapping[ir.Node, Collection[ir.Value]],
    keep: Collection[str],
) -> None:
    graph = tape.graph
    weight = graph.initializers.get(str(update.outputs[0].name).removeprefix(names.UPDATED))
    if weight is None or weight.dtype not in _TYPES or update.op_type != "Sub":
        return
    decayed, scaled = update.inputs
    if decayed is not weight or scaled is None or not _only_here(scaled, keep):
        return
    scaling = scaled.producer()
    if scaling is None or scaling.op_type != "Mul":
        return
    for gradient, number in (scaling.inputs, reversed(scaling.inputs)):
        if gradient is None or number is None or not _is_number(number):
            continue
        way = _way_to_product(gradient, keep)
        if way and _pays(way[-1], number, weight):
            readers = _independent_readers(weight, update, nested)
            _write(tape, update, way[-1], number, readers)
            for node in (update, scaling, *way):
                graph.remove(node, safe=True)
            return


def _way_to_product(gradient: ir.Value, keep: Collection[str]) -> list[ir.Node]:
    """The nodes between a gradient and the product that makes it, the product last."""
    way: list[ir.Node] = []
    value: ir.Value | None = gradient
    while value is not None and _only_here(value, keep):
        node = value.producer()
        if node is None:
            break
        way.append(node)
        if _is_plain_product(node):
            return way
        value = node.inputs[0] if node.op_type in _VIEWS and static(node.outputs[0]) else None
    return []


def _write(
    tape: Tape,
    update: ir.Node,
    product: ir.Node,
    number: ir.Value,
    readers: Collection[ir.Node],
) -> None:
    graph, weight = tape.graph, update.inputs[0]
    assert weight is not None  # noqa: S101 - found by `_fuse`
    with tape.at(update, scope=f"fused/{weight.name}/", metadata=dict(update.metadata_props)):
        left, right = (tape.wrap(value) for value in product.inputs[:2])  # type: ignore[arg-type]
        fixed, alpha = _fixed(number, weight), -1.0
        if fixed is not None:
            alpha = -fixed
            left = tape.Reshape(left, _after(tape, tape.ints(*left.shape), readers))
        elif _size(left) < _size(right):
            left = left * _after(tape, tape.wrap(number), readers)
        else:
            right = right * _after(tape, tape.wrap(number), readers)
        # A recurrent weight has an axis of directions before those of its product.
        shape = lengths(product.outputs[0]) or ()
        old_weight = tape.wrap(weight)
        if lengths(weight) != shape:
            old_weight = tape.Reshape(weight, tape.ints(*shape))
        updated = tape.Gemm(
            left,
            right,
            old_weight,
            alpha=alpha,
            beta=1.0,
            transA=product.attributes.get_int("transA", 0),
            transB=product.attributes.get_int("transB", 0),
        )
    old, name = update.outputs[0], str(update.outputs[0].name)
    updated.value.shape, updated.value.type = ir.Shape(shape), weight.type
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = updated.value
    old.name = f"{name}/unfused"
    updated.value.name = name


def _fixed(number: ir.Value, weight: ir.Value) -> float | None:
    """A constant that an attribute can hold without loss."""
    value = constant(number)
    return None if value is None or weight.dtype != ir.DataType.FLOAT else float(value)


def _pays(product: ir.Node, number: ir.Value, weight: ir.Value) -> bool:
    """Whether scaling an operand costs less than reading and writing the weight once more."""
    if _fixed(number, weight) is not None:
        return True
    sizes = [math.prod(lengths(value) or ()) for value in product.inputs[:2] if value is not None]
    return min(sizes) <= _MOST_SCALED * math.prod(lengths(weight) or ())


def _after(tape: Tape, number: Tensor, readers: Collection[ir.Node]) -> Tensor:
    """The same numbers, made to depend on the results of some nodes."""
    always = np.asarray(True)  # noqa: FBT003 - a tensor's content
    for reader in readers:
        flat = tape.Reshape(reader.outputs[0], [-1])
        first = tape.Gather(flat, tape.constant(np.asarray(0, np.int64)))
        if first.dtype != number.dtype:
            # Not the number itself: NaN is no whole number.
            first = tape.Cast(first > 0, to=number.dtype.value)
        number = tape.Where(tape.constant(always), number, first)
    return number


def _independent_readers(
    weight: ir.Value, update: ir.Node, nested: Mapping[ir.Node, Collection[ir.Value]]
) -> list[ir.Node]:
    """Nodes that read a weight and that its update does not depend on yet."""
    before: set[ir.Node] = set()
    open_nodes = [update]
    while open_nodes:
        for value in open_nodes.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in before:
                before.add(producer)
                open_nodes.append(producer)
    readers: list[ir.Node] = []
    open_values = [weight]
    while open_values:
        value = open_values.pop()
        found = [node for node in value.consumers() if node.graph is update.graph]
        found += [node for node, values in nested.items() if value in values]
        readers += found
        # What reads a view reads the weight.
        open_values += [node.outputs[0] for node in found if node.op_type in _VIEWS]
    return [n for n in dict.fromkeys(readers) if n is not update and n not in before]


def _is_number(value: ir.Value) -> bool:
    shape = value.shape if value.const_value is None else value.const_value.shape
    return shape is not None and len(shape) == 0


def _is_plain_product(node: ir.Node) -> bool:
    return (
        node.op_type == "Gemm"
        and len([value for value in node.inputs if value is not None]) == 2  # noqa: PLR2004
        and node.attributes.get_float("alpha", 1.0) == 1
        and all(value is not None and static(value) for value in node.inputs)
    )


def _only_here(value: ir.Value, keep: Collection[str]) -> bool:
    return len(list(value.uses())) == 1 and value.name not in keep and not value.is_graph_output()


def _size(tensor: Tensor) -> int:
    return int(np.prod(tensor.shape))
