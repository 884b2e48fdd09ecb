"""Runs the update of a large weight block by block, so that intermediate results stay in the cache.

An update such as Adam's is a dozen operations on each element. Node by node, every operation reads
and writes whole tensors in memory. The pass moves the nodes into the body of a ``Scan`` over blocks
of some ten thousand elements; results are bit-identical. ``python -m benchmarks --only
onnx-updates`` measures the gain: on one thread, Adam took 0.6 of the time, momentum 0.8.

The ``Scan`` writes the same tensors in the shape ``[blocks, length]``, and the runtime binds them
to the state's memory without a copy. Weights whose elements do not divide into blocks, and updates
that need a number computed from the whole tensor (LAMB), are not changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.graph import names
from popdist_onnx.graph.compat import captured
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import lengths, static

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

BLOCKED = "blocked-update"
"""Role of the nodes that this pass writes."""

_LEAST_ELEMENTS = 1 << 17
"""Smaller weights fit into the cache with all that is calculated of them."""

_BLOCK = range(1 << 13, (1 << 15) + 1)
"""Lengths of a block: longer ones leave the cache, shorter ones cost more for the loop."""

_LONG_BLOCK = range(1 << 16, (1 << 17) + 1)
"""Lengths that fit into the cache where an update calculates one tensor on the way, as plain SGD's
does: the loop costs less, and a fifth to a quarter of the time is saved."""

_LEAST_NODES = 2

_FEW_NODES = 3

_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Cast", "Div", "Max", "Min", "Mul", "Neg", "Pow", "Sqrt", "Sub", "Where"}
)

_STATES = ("", names.ACCL, names.ACCL1, names.ACCL2, names.ACCL3)


@dataclass
class Part:
    """The nodes of one weight's update that work element by element.

    Attributes:
        nodes: The nodes in order.
        whole: Tensors of the weight's shape that they read.
        results: Next contents of the weight and its states.
    """

    nodes: list[ir.Node]
    whole: list[ir.Value]
    results: list[ir.Value]


class BlockUpdates(Pass):
    """Moves updates of large weights into loops over blocks.

    Needs: a graph with updates. Leaves: ``UpdatedVar___<state>`` of these weights and their states
    in the shape ``[blocks, length]``, made by ``Scan`` nodes of role ``blocked-update``.

    Args:
        keep: Tensors that have to be there afterwards, in their own shape.
    """

    def __init__(self, keep: Collection[str] = ()) -> None:
        self.keep = keep

    def change(self, model: ir.Model) -> bool:
        """Moves the updates; false where there is none to move."""
        graph = model.graph
        tape = Tape(graph, scope="blocked/")
        moved = False
        for weight in list(graph.initializers.values()):
            part = _part(graph, weight, self.keep) if _is_large(weight) else None
            length = None if part is None else _block_length(weight, len(part.nodes))
            if part is not None and length is not None:
                _write(tape, weight, part, length)
                moved = True
        return moved


def block_updates(model: ir.Model, keep: Collection[str] = ()) -> ir.Model:
    """Moves updates of large weights into loops over blocks, in place; see `BlockUpdates`."""
    BlockUpdates(keep)(model)
    return model


def _is_large(weight: ir.Value) -> bool:
    if str(weight.name).startswith(names.RESERVED) or not static(weight):
        return False
    return math.prod(lengths(weight) or ()) >= _LEAST_ELEMENTS


def _block_length(weight: ir.Value, nodes: int) -> int | None:
    elements = math.prod(lengths(weight) or ())
    tried = [*reversed(_LONG_BLOCK), *reversed(_BLOCK)] if nodes <= _FEW_NODES else reversed(_BLOCK)
    return next((length for length in tried if elements % length == 0), None)


def _part(graph: ir.Graph, weight: ir.Value, keep: Collection[str]) -> Part | None:
    wanted = {names.updated(prefix + str(weight.name)) for prefix in _STATES}
    results = [value for value in graph.outputs if value.name in wanted]
    inside = _inside(results, lengths(weight))
    nodes = [node for node in graph if node in inside]
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v and v not in made)
    whole = [value for value in read if lengths(value) == lengths(weight)]
    numbers = set(read) - set(whole)
    fits = (
        len(nodes) >= _LEAST_NODES
        and all(value in made for value in results)
        and all(lengths(value) == () for value in numbers)
        and not _depend_on(graph, numbers, made)
        and all(_stays_inside(value, inside, results, keep) for value in made)
    )
    return Part(nodes, whole, results) if fits else None


def _inside(results: list[ir.Value], shape: tuple[int, ...] | None) -> set[ir.Node]:
    inside: set[ir.Node] = set()
    open_values = list(results)
    while open_values:
        node = open_values.pop().producer()
        if node is None or node in inside or not _works_by_element(node, shape):
            continue
        inside.add(node)
        open_values += [value for value in node.inputs if value is not None]
    return inside


def _works_by_element(node: ir.Node, shape: tuple[int, ...] | None) -> bool:
    return (
        node.op_type in _ELEMENTWISE
        and node.domain in {"", "ai.onnx"}
        and node.metadata_props.get(names.PHASE) == "update"
        and lengths(node.outputs[0]) == shape
    )


def _depend_on(graph: ir.Graph, numbers: set[ir.Value], made: set[ir.Value]) -> bool:
    reached = set(made)
    for node in graph:
        if not reached.isdisjoint([*node.inputs, *captured(node)]):
            reached.update(node.outputs)
    return not reached.isdisjoint(numbers)


def _stays_inside(
    value: ir.Value, inside: set[ir.Node], results: list[ir.Value], keep: Collection[str]
) -> bool:
    out = value.is_graph_output() and value not in results
    return not out and value.name not in keep and all(node in inside for node in value.consumers())


def _write(tape: Tape, weight: ir.Value, part: Part, length: int) -> None:
    graph, blocks = tape.graph, math.prod(lengths(weight) or ()) // length
    metadata = {**part.nodes[-1].metadata_props, names.ROLE: BLOCKED}
    tape.metadata = metadata
    shape = tape.ints(blocks, length)
    with tape.at(part.nodes[-1]):
        divided = [tape.Reshape(value, shape).value for value in part.whole]
    body = body_of_blocks(part.nodes, part.whole, part.results, length)
    outputs = [
        ir.Value(name=value.name, type=value.type, shape=ir.Shape([blocks, length]))
        for value in part.results
    ]
    scan = ir.Node(
        "",
        "Scan",
        divided,
        [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(divided))],
        outputs=outputs,
        name=f"update/{weight.name}",
        metadata_props=metadata,
    )
    graph.insert_after(part.nodes[-1], scan)
    for index, value in enumerate(graph.outputs):
        if value in part.results:
            graph.outputs[index] = outputs[part.results.index(value)]
    graph.remove(part.nodes, safe=True)


def body_of_blocks(
    nodes: Sequence[ir.Node],
    whole: Sequence[ir.Value],
    results: Sequence[ir.Value],
    length: int,
) -> ir.Graph:
    """Nodes that work element by element, as the body of a loop over blocks.

    Args:
        nodes: The nodes in order, each with outputs of the same shape.
        whole: Tensors of that shape that they read; the body's inputs are a block of each.
        results: Tensors that they make; the body's outputs are a block of each.
        length: Elements of a block.

    Returns:
        The body; it reads single numbers from outside.
    """
    block = ir.Shape([length])
    copies = {
        value: ir.Value(name=f"block/{value.name}", type=value.type, shape=block)
        for value in [*whole, *_made(nodes)]
    }
    inner = [
        ir.Node(
            node.domain,
            node.op_type,
            [copies.get(value, value) if value else None for value in node.inputs],
            list(node.attributes.values()),
            outputs=[copies[value] for value in node.outputs],
            name=node.name,
        )
        for node in nodes
    ]
    outputs = [copies[value] for value in results]
    return ir.Graph([copies[value] for value in whole], outputs, nodes=inner, name="block")


def _made(nodes: Sequence[ir.Node]) -> Iterator[ir.Value]:
    for node in nodes:
        yield from node.outputs
