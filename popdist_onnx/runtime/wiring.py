"""Decides in which memory each tensor of a stage lies, and which state a run may overwrite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from popdist_onnx.graph import names
from popdist_onnx.runtime.stages import Stage, buckets, cut

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import onnx

    from popdist_onnx.runtime.graph_reader import HostCopy, Reading, Spec


LEAST_BUCKET = 1 << 20
"""Bytes of gradients below which a stage of their own does not pay: they travel in 10 ms even over
1 Gbit/s."""


@dataclass(frozen=True)
class Wiring:
    """The tensors of one stage by where they lie.

    Attributes:
        stage: The stage.
        data: Inputs that every micro-batch brings.
        fixed_inputs: Inputs in memory of the runtime.
        fixed_outputs: Outputs in memory of the runtime.
        allocated: Outputs whose shape is known only after a run.
        borrowed: Inputs that ONNX Runtime allocated as another stage's output.
        direct: Anchors that are written to the host's memory.
        copied: Anchors that other stages read too, and that are therefore copied.
    """

    stage: Stage
    data: tuple[str, ...]
    fixed_inputs: tuple[str, ...]
    fixed_outputs: tuple[str, ...]
    allocated: tuple[str, ...]
    borrowed: tuple[str, ...]
    direct: tuple[str, ...]
    copied: tuple[str, ...]


def divide(reading: Reading, anchors: Sequence[str], *, together: bool) -> list[Stage]:
    """Cuts a graph into stages; ``together`` if one micro-batch makes one update."""
    made = {name for step in reading.steps for name in step.writes}
    wanted = {*(names.updated(state) for state in reading.states), *made.intersection(anchors)}
    sizes = {copy.source: spec_bytes(reading.spec(copy.source)) for copy in _in_order(reading)}
    return cut(
        reading.steps,
        wanted=wanted,
        groups=buckets(sizes, least_bytes=LEAST_BUCKET),
        whole=together and not reading.copies,
    )


def gradients(reading: Reading, stages: Sequence[Stage]) -> list[tuple[HostCopy, Spec]]:
    """Exchange points with type and shape, in the order in which stages complete them."""
    by_source = {copy.source: copy for copy in reading.copies}
    order = [name for stage in stages for name in stage.complete]
    return [(by_source[name], reading.spec(name)) for name in order]


def overwritable_states(reading: Reading, stages: Sequence[Stage], index: int) -> list[str]:
    """States that a stage reads and writes, and that no later stage reads."""
    later = {name for stage in stages[index + 1 :] for name in stage.reads}
    written = set(stages[index].writes)
    return [s for s in reading.states if names.updated(s) in written and s not in later]


def wire(
    reading: Reading, stages: Sequence[Stage], anchors: Collection[str], data: Collection[str]
) -> list[Wiring]:
    """Decides where all tensors lie; ``data`` are the inputs that every micro-batch brings."""
    read_elsewhere = {name for stage in stages for name in stage.reads}
    kept = {names.updated(state) for state in reading.states} | read_elsewhere
    kept |= {copy.source for copy in reading.copies}
    unknown = {n for s in stages for n in s.writes if reading.spec(n).shape is None}
    # The next value of a state has the shape of the state's memory, whatever shape inference found.
    unknown -= {names.updated(state) for state in reading.states}
    found = []
    for stage in stages:
        own = kept | (set(stage.writes) if stage.update else set())
        asked = [name for name in stage.writes if name in anchors and not stage.update]
        outputs = [n for n in stage.writes if n in own]
        found.append(
            Wiring(
                stage=stage,
                data=tuple(n for n in stage.reads if n in data),
                fixed_inputs=tuple(
                    n
                    for n in stage.reads
                    if n not in reading.constants and n not in data and n not in unknown
                ),
                fixed_outputs=tuple(n for n in outputs if n not in unknown),
                allocated=tuple(n for n in outputs if n in unknown),
                borrowed=tuple(n for n in stage.reads if n in unknown),
                direct=tuple(n for n in asked if n not in own),
                copied=tuple(n for n in asked if n in own),
            )
        )
    return found


def _in_order(reading: Reading) -> list[HostCopy]:
    """The exchange points in the order in which the backward pass completes gradients.

    The order is that of the gradients and not of their sums over micro-batches, so that instances
    with one and with several replicas have the same order.
    """
    index_of = {name: i for i, step in enumerate(reading.steps) for name in step.writes}
    return sorted(
        reading.copies,
        key=lambda copy: index_of.get(names.gradient(copy.weight), index_of.get(copy.source, 0)),
    )


def spec_bytes(spec: Spec) -> int:
    """The size of a tensor in bytes; zero where the shape is not known."""
    elements = 0 if spec.shape is None else 1
    for length in spec.shape or ():
        elements *= length
    return elements * spec.dtype.itemsize  # type: ignore[return-value]  # float only below a byte


# State tensors that a run may overwrite while it reads them.
#
# ONNX Runtime may run nodes in any order that data flow allows. A tensor may be overwritten where
# all its other readers come first by data flow, and where the node that writes its next value reads
# it element by element or not at all. The check uses the graph as ONNX Runtime has rewritten it: a
# fused node can read tensors that none of its parts read.


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
    """States of ``model``, a stage as ONNX Runtime executes it, that may lie in one buffer."""
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
        # The third operand is copied to the result before the product is added.
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
            frozenset(names_read(node)),
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


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads; of its sub-graphs everything that may be an outer tensor."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from names_read(inner)
            yield from (value.name for value in graph.output)


def _size(value: onnx.ValueInfoProto) -> int | None:
    dims = value.type.tensor_type.shape.dim
    if any(not dim.HasField("dim_value") for dim in dims):
        return None
    return math.prod(int(dim.dim_value) for dim in dims)
