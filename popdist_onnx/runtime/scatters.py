"""Writes additions of scattered rows so that several threads compute them right.

ONNX Runtime divides the rows of a ``ScatterND`` over its threads. Where two rows go to one place,
as in the gradient of an embedding, threads read and write it at the same time, and additions get
lost. ``ScatterElements`` adds in the order of the rows, by one thread. So with several threads it
takes over, and results are bit-identical to those of one thread.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.tensor import Tape

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.graph.values import Dim


def add_in_order(model: ir.Model, threads: int) -> None:
    """Replaces each ``ScatterND`` that reduces, in place, in sub-graphs too.

    Args:
        model: The graph of a session of ONNX Runtime on processors.
        threads: Threads of an operator; one needs no replacement, which is slower.

    Raises:
        UnknownShapeError: A rank that is needed is not known.
    """
    if threads > 1:
        _replace_in(model.graph, model.opset_imports[""])


def _replace_in(graph: ir.Graph, opset: int) -> None:
    tape = Tape(graph, opset=opset)
    for node in list(graph):
        for inner in subgraphs(node):
            _replace_in(inner, opset)
        if (
            node.op_type == "ScatterND"
            and node.domain in ("", "ai.onnx")
            and node.attributes.get_string("reduction", "none") != "none"
        ):
            _replace(tape, node)


def _replace(tape: Tape, node: ir.Node) -> None:
    data, indices, updates = (tape.wrap(value) for value in node.inputs)  # type: ignore[arg-type]
    if data.static and 0 in data.shape:
        return  # nothing is added to an empty tensor
    stem = node.name or node.outputs[0].name
    with tape.at(node, scope=f"{stem}/", metadata=dict(node.metadata_props)):
        lengths = _lengths(data)
        depth = indices.lengths[-1]
        if not isinstance(depth, int):
            depth = indices.shape[-1]  # raises, and says why it is not known
        width = _product(tape, lengths[depth:])
        rows = tape.Reshape(_rows(indices, lengths[:depth]), [-1, 1])
        across = tape.Concat(tape.ints(1), width, axis=0)
        within = tape.Concat(tape.ints(-1), width, axis=0)
        added = tape.ScatterElements(
            tape.Reshape(data, within),
            tape.Expand(rows, across),
            tape.Reshape(updates, within),
            axis=0,
            reduction=node.attributes.get_string("reduction", "none"),
        )
        whole = tape.ints(*data.shape) if data.static else tape.Shape(data)
        tape.substitute(node, [tape.Reshape(added, whole)])


def _lengths(data: Tensor) -> list[Tensor]:
    """The lengths of a tensor, each as a tensor of one number."""
    tape = data.tape
    known: tuple[Dim, ...] = data.lengths
    shape = None if data.static else tape.Shape(data)
    return [
        tape.ints(one) if isinstance(one, int) else tape.Gather(shape, [place])
        for place, one in enumerate(known)
    ]


def _product(tape: Tape, lengths: list[Tensor]) -> Tensor:
    constants = [one.constant for one in lengths]
    known = [int(one.item()) for one in constants if one is not None]
    product = tape.ints(math.prod(known))
    for one, constant in zip(lengths, constants, strict=True):
        if constant is None:
            product = product * one
    return product


def _rows(indices: Tensor, lengths: list[Tensor]) -> Tensor:
    """The number of the place that each index tuple names; one too large where there is none."""
    tape = indices.tape
    if len(lengths) == 1:
        return indices  # ONNX Runtime checks these itself
    rows, valid = None, None
    for column, length in zip(
        tape.many("Split", len(lengths), indices, axis=-1, num_outputs=len(lengths)),
        lengths,
        strict=True,
    ):
        place = tape.Where(tape.Less(column, 0), column + length, column)
        inside = tape.And(tape.GreaterOrEqual(place, 0), tape.Less(place, length))
        rows = place if rows is None else rows * length + place
        valid = inside if valid is None else tape.And(valid, inside)
    assert rows is not None  # noqa: S101 - there is a column
    return tape.Where(valid, rows, _product(tape, lengths))
