"""Folds plain SGD updates into the matrix products that compute the gradients.

``g = A'B; w - s g`` becomes one ``Gemm`` with w as its third operand: the gradient is never stored,
and the weight is read and written once. The smaller operand is scaled by s.

The new weight may overwrite the old one only after all other readers of the old one (see `wiring`).
The matrix product of the layer's backward pass is such a reader, and no data flow puts it first. So
s is made to depend on the result of that product, by a ``Where`` that always selects s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph import names
from popdist_onnx.graph.compat import captured
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import static

if TYPE_CHECKING:
    from collections.abc import Collection

    from popdist_onnx.graph.tensor import Tensor

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def fuse_updates(model: ir.Model, keep: Collection[str]) -> None:
    """Folds updates in a graph of micro-batch and update together; ``keep`` tensors stay."""
    graph = model.graph
    for output in list(graph.outputs):
        node = output.producer()
        if node is not None and str(output.name).startswith(names.UPDATED):
            _fuse(graph, node, keep)


def _fuse(graph: ir.Graph, update: ir.Node, keep: Collection[str]) -> None:
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
        product = None if gradient is None else gradient.producer()
        if (
            gradient is not None
            and number is not None
            and product is not None
            and _is_number(number)
            and _is_plain_product(product)
            and _only_here(gradient, keep)
        ):
            _write(graph, update, product, number, weight)
            for node in (update, scaling, product):
                graph.remove(node, safe=True)
            return


def _write(
    graph: ir.Graph, update: ir.Node, product: ir.Node, number: ir.Value, weight: ir.Value
) -> None:
    tape = Tape(graph, scope=f"fused/{weight.name}/", metadata=dict(update.metadata_props))
    with tape.at(update):
        amount = _after(tape, tape.wrap(number), _independent_readers(graph, weight, update))
        left, right = (tape.wrap(value) for value in product.inputs[:2])  # type: ignore[arg-type]
        if _size(left) < _size(right):
            left = left * amount
        else:
            right = right * amount
        updated = tape.Gemm(
            left,
            right,
            weight,
            alpha=-1.0,
            beta=1.0,
            transA=product.attributes.get_int("transA", 0),
            transB=product.attributes.get_int("transB", 0),
        )
    old, name = update.outputs[0], str(update.outputs[0].name)
    updated.value.shape, updated.value.type = weight.shape, weight.type
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = updated.value
    old.name = f"{name}/unfused"
    updated.value.name = name


def _after(tape: Tape, number: Tensor, readers: Collection[ir.Node]) -> Tensor:
    """The same number, made to depend on the results of some nodes."""
    always = np.asarray(True)  # noqa: FBT003 - a tensor's content
    for reader in readers:
        flat = tape.Reshape(reader.outputs[0], [-1])
        first = tape.Gather(flat, tape.constant(np.asarray(0, np.int64)))
        number = tape.Where(tape.constant(always), number, first)
    return number


def _independent_readers(graph: ir.Graph, weight: ir.Value, update: ir.Node) -> list[ir.Node]:
    """Nodes that read a weight and that its update does not depend on yet."""
    before: set[ir.Node] = set()
    open_nodes = [update]
    while open_nodes:
        for value in open_nodes.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in before:
                before.add(producer)
                open_nodes.append(producer)
    readers = [n for n in graph if weight in n.inputs or weight in captured(n)]
    return [n for n in readers if n is not update and n not in before]


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
