"""Which state tensors a run may overwrite while it reads them. Pure.

ONNX Runtime may run nodes in any order that data flow allows. Overwriting is safe where all readers
of a tensor come before the node that writes its next value by data flow, and where that node reads
it, if at all, element by element. This is looked at in the graph as ONNX Runtime has rewritten it
for execution: its fusions make readers of nodes that were none before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from popdist_onnx.graph import names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx

_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Sum", "Identity", "Max", "Sqrt", "Where"})
"""Operators of optimizers that compute each element from the operands' same elements."""

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""Operators whose result may be their operand's memory."""


@dataclass(frozen=True)
class _Node:
    op_type: str
    inputs: tuple[str, ...]
    reads: frozenset[str]
    writes: tuple[str, ...]
    body: onnx.GraphProto | None = None


def overwritable(model: onnx.ModelProto, states: Collection[str]) -> frozenset[str]:
    """Finds the states that may live in one buffer.

    Args:
        model: A stage as ONNX Runtime executes it.
        states: States that it reads and writes.

    Returns:
        Those of the states for which it is safe.
    """
    nodes = _nodes(model.graph)
    sizes = {v.name: _size(v) for v in (*model.graph.input, *model.graph.output)}
    return frozenset(
        state
        for state in states
        if sizes.get(state) is not None
        and sizes[state] == sizes.get(names.updated(state))
        and _safe(state, names.updated(state), nodes)
    )


def _safe(state: str, result: str, nodes: list[_Node]) -> bool:
    made_by = {name: i for i, node in enumerate(nodes) for name in node.writes}
    last = made_by.get(result)
    if last is None:
        return False
    before = _before(last, nodes, made_by)
    memory = {state}
    for i, node in enumerate(nodes):
        if memory.isdisjoint(node.reads):
            continue
        if i == last:
            if not _reads_elementwise(node, memory, result):
                return False
        elif i not in before:
            return False
        elif node.op_type in _VIEWS:
            memory.update(node.writes)
    return True


def _reads_elementwise(node: _Node, memory: set[str], result: str) -> bool:
    if node.op_type == "Gemm":
        # The third operand is copied to the result before anything is added to it.
        return memory.isdisjoint(node.inputs[:2])
    if node.op_type == "Scan" and node.body is not None:
        return _reads_row_by_row(node, node.body, memory, result)
    return node.op_type in _ELEMENTWISE


def _reads_row_by_row(node: _Node, body: onnx.GraphProto, memory: set[str], result: str) -> bool:
    """Whether a loop over rows writes each row after all that it reads of the same row."""
    if len(body.input) != len(node.inputs):
        return False
    row = body.output[node.writes.index(result)]
    inner = _nodes(body)
    rows = [given for name, given in zip(node.inputs, body.input, strict=True) if name in memory]
    outside = {name for one in inner for name in one.reads} & memory
    return not outside and all(
        _size(given) == _size(row) and _safe(given.name, row.name, inner) for given in rows
    )


def _nodes(graph: onnx.GraphProto) -> list[_Node]:
    return [
        _Node(
            node.op_type,
            tuple(node.input),
            frozenset(_reads(node)),
            tuple(node.output),
            next((a.g for a in node.attribute if a.name == "body"), None),
        )
        for node in graph.node
    ]


def _before(last: int, nodes: list[_Node], made_by: dict[str, int]) -> set[int]:
    found: set[int] = set()
    open_nodes = [last]
    while open_nodes:
        for name in nodes[open_nodes.pop()].reads:
            index = made_by.get(name)
            if index is not None and index not in found:
                found.add(index)
                open_nodes.append(index)
    return found


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads; of its sub-graphs everything that could be from outside."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (value.name for value in graph.output)


def _size(value: onnx.ValueInfoProto) -> int | None:
    dims = value.type.tensor_type.shape.dim
    if any(not dim.HasField("dim_value") for dim in dims):
        return None
    return math.prod(int(dim.dim_value) for dim in dims)
