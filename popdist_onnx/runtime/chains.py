"""Computes chains of operators that work element by element block by block, in the cache.

The gradient of a Gelu is a dozen operations on each element. Node by node, every operation reads
and writes whole tensors in memory. Here the nodes move into the body of a ``Scan`` over blocks, as
the updates of large weights do (`popdist_onnx.transforms.block_updates`); results are
bit-identical. The rewritten graph is for the processor only, so that files keep the graph before
it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.graph import names
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import lengths
from popdist_onnx.transforms.block_updates import body_of_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

BLOCKED = "blocked-chain"
"""Role of the nodes that this rewrite writes."""

_LEAST_ELEMENTS = 1 << 18
"""Of smaller tensors, a chain's operands and results stay in the cache as they are."""

_BLOCK = range(1 << 14, (1 << 15) + 1)
"""Lengths of a block for each thread: what a chain keeps of longer ones leaves the cache."""

_LEAST_NODES = 4
"""Shorter chains save less than the loop costs."""

_ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Div", "Equal", "Erf", "Exp", "Greater", "GreaterOrEqual"),
        *("HardSigmoid", "Less", "LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Not", "Or"),
        *("Pow", "Reciprocal", "Relu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Sub", "Sum", "Tanh"),
        "Where",
    }
)


def block_chains(model: ir.Model, keep: Collection[str], threads: int = 1) -> None:
    """Moves chains of a training graph into loops over blocks.

    Args:
        model: The graph, changed in place. Updates are left as they are.
        keep: Tensors that have to be there afterwards.
        threads: Threads of an operator, which share a block.
    """
    graph = model.graph
    tape = Tape(graph)
    places = {node: place for place, node in enumerate(graph)}
    moved: set[ir.Node] = set()
    for root in reversed(list(graph)):
        if root in moved or not _is_large(root):
            continue
        inside = _chain(root, places, moved)
        length = _block_length(root, threads)
        if len(inside) >= _LEAST_NODES and length is not None:
            nodes = sorted(inside, key=places.__getitem__)
            _write(tape, nodes, length, keep, places)
            moved.update(nodes)


def _chain(
    root: ir.Node, places: Mapping[ir.Node, int], moved: Collection[ir.Node]
) -> set[ir.Node]:
    """The nodes around ``root`` that can all run in its place, and ``root``.

    What they give to others may be read after ``root`` only.
    """
    inside = _connected(root, lambda node: _fits(node, root, places) and node not in moved)
    while True:
        early = {
            node
            for node in inside
            for reader in node.outputs[0].consumers()
            if reader not in inside and places.get(reader, -1) < places[root]
        }
        if not early:
            return inside
        left = inside - early
        inside = _connected(root, left.__contains__)


def _connected(root: ir.Node, may_join: Callable[[ir.Node], bool]) -> set[ir.Node]:
    """The nodes that read each other's results, or the same one's of them, with ``root``."""
    inside = {root}
    open_nodes = [root]
    while open_nodes:
        node = open_nodes.pop()
        makers = [None if value is None else value.producer() for value in node.inputs]
        for other in (*makers, *node.outputs[0].consumers()):
            if other is not None and other not in inside and may_join(other):
                inside.add(other)
                open_nodes.append(other)
    return inside


def _fits(node: ir.Node, root: ir.Node, places: Mapping[ir.Node, int]) -> bool:
    """Whether a node works on the same elements as ``root``, before it and in the same pass."""
    return (
        places.get(node, math.inf) < places[root]
        and _works_by_element(node)
        and lengths(node.outputs[0]) == lengths(root.outputs[0])
        and all(
            node.metadata_props.get(key) == root.metadata_props.get(key)
            for key in (names.PHASE, names.PASS)
        )
    )


def _is_large(node: ir.Node) -> bool:
    return (
        _works_by_element(node)
        and node.metadata_props.get(names.PHASE) != "update"
        and math.prod(lengths(node.outputs[0]) or ()) >= _LEAST_ELEMENTS
    )


def _works_by_element(node: ir.Node) -> bool:
    """Whether every operand has the shape of the only result, or is one number."""
    if node.op_type not in _ELEMENTWISE or node.domain not in ("", "ai.onnx"):
        return False
    shape = lengths(node.outputs[0])
    operands = [lengths(value) for value in node.inputs if value is not None]
    return shape is not None and all(one in {shape, ()} for one in operands) and shape in operands


def _block_length(root: ir.Node, threads: int) -> int | None:
    elements = math.prod(lengths(root.outputs[0]) or ())
    tried = range(_BLOCK.stop * threads - 1, _BLOCK.start * threads - 1, -1)
    return next((length for length in tried if elements % length == 0), None)


def _write(
    tape: Tape,
    nodes: list[ir.Node],
    length: int,
    keep: Collection[str],
    places: dict[ir.Node, int],
) -> None:
    root = nodes[-1]
    shape = lengths(root.outputs[0]) or ()
    made = {node.outputs[0] for node in nodes}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v and v not in made)
    whole = [value for value in read if lengths(value) == shape]
    results = [node for node in nodes if _is_read_outside(node.outputs[0], nodes, keep)]
    metadata = {**root.metadata_props, names.ROLE: BLOCKED}
    with tape.at(root, scope=f"{root.name or root.outputs[0].name}/", metadata=metadata):
        blocks = [math.prod(shape) // length, length]
        divided = [tape.Reshape(value, tape.ints(*blocks)) for value in whole]
        body = body_of_blocks(nodes, whole, [node.outputs[0] for node in results], length)
        looped = tape.many("Scan", len(results), *divided, body=body, num_scan_inputs=len(divided))
        joined = []
        for node, one in zip(results, looped, strict=True):
            one.value.type, one.value.shape = node.outputs[0].type, ir.Shape(blocks)
            joined.append(tape.Reshape(one, tape.ints(*shape)))
    for one in (*divided, *looped, *joined):
        places[one.value.producer()] = places[root]  # type: ignore[index]  # written just now
    for node, one in zip(reversed(results), reversed(joined), strict=True):
        tape.substitute(node, [one])
    tape.graph.remove([node for node in nodes if node not in results], safe=True)


def _is_read_outside(value: ir.Value, nodes: Collection[ir.Node], keep: Collection[str]) -> bool:
    return (
        value.is_graph_output()
        or value.name in keep
        or any(reader not in nodes for reader in value.consumers())
    )
