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
from popdist_onnx.transforms.block_updates import body_of_blocks, lengths

if TYPE_CHECKING:
    from collections.abc import Collection

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
    moved: set[ir.Node] = set()
    for root in reversed(list(graph)):
        if root in moved or not _is_large(root):
            continue
        inside = _chain(root, keep)
        nodes = [node for node in graph if node in inside] if len(inside) >= _LEAST_NODES else []
        length = _block_length(root, threads)
        if nodes and length is not None:
            _write(tape, nodes, length)
            moved.update(nodes)


def _chain(root: ir.Node, keep: Collection[str]) -> set[ir.Node]:
    """The nodes before ``root`` whose results nothing else reads, and ``root``."""
    inside = {root}
    open_nodes = [root]
    while open_nodes:
        for value in open_nodes.pop().inputs:
            node = None if value is None else value.producer()
            if (
                node is not None
                and node not in inside
                and _works_by_element(node)
                and lengths(node.outputs[0]) == lengths(root.outputs[0])
                and node.metadata_props.get(names.PHASE) == root.metadata_props.get(names.PHASE)
                and not node.outputs[0].is_graph_output()
                and node.outputs[0].name not in keep
                and all(reader in inside for reader in node.outputs[0].consumers())
            ):
                inside.add(node)
                open_nodes.append(node)
    return inside


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


def _write(tape: Tape, nodes: list[ir.Node], length: int) -> None:
    root = nodes[-1]
    result = root.outputs[0]
    shape = lengths(result) or ()
    made = {node.outputs[0] for node in nodes}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v and v not in made)
    whole = [value for value in read if lengths(value) == shape]
    metadata = {**root.metadata_props, names.ROLE: BLOCKED}
    with tape.at(root, scope=f"{root.name or result.name}/", metadata=metadata):
        blocks = tape.ints(math.prod(shape) // length, length)
        divided = [tape.Reshape(value, blocks) for value in whole]
        body = body_of_blocks(nodes, whole, [result], length)
        (looped,) = tape.many("Scan", 1, *divided, body=body, num_scan_inputs=len(divided))
        looped.value.type = result.type
        looped.value.shape = ir.Shape([math.prod(shape) // length, length])
        tape.substitute(root, [tape.Reshape(looped, tape.ints(*shape))])
    tape.graph.remove(nodes[:-1], safe=True)
