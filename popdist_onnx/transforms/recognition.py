"""Finds functions that exporters write as several nodes, and writes each as one.

Before opset 20 ONNX has no Gelu, so that exporters write it as products with
``1 + erf(x / sqrt 2)`` or ``1 + tanh(...)``, in many orders. Differentiated node by node, such a
Gelu takes half as many operations again as by its own rule.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import constant, dims
from popdist_onnx.lowering.registry import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import onnx_ir as ir

    from popdist_onnx.graph.values import Array

_MOST_NODES = 16
"""More than any way of writing the function takes."""

_POINTS = np.linspace(-6, 6, 61)
_TOLERANCE = 1e-6
"""Exporters write constants such as the root of 2 in single precision."""

_erf = np.vectorize(math.erf, otypes=[np.float64])

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Div": np.divide,
    "Erf": _erf,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}
"""What a written-out Gelu consists of."""

_KINDS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "Erf": ("none", lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))),
    "Tanh": (
        "tanh",
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
}
"""By the operator that a Gelu is found by: its kind, and the function."""


def recognise_gelu(model: ir.Model, keep: Collection[str] = ()) -> ir.Model:
    """Writes each Gelu that consists of several nodes as one ``ai.graphcore.Gelu``.

    Args:
        model: The model, changed in place; its shapes are known.
        keep: Tensors that have to be there afterwards.

    Returns:
        The model.
    """
    graph = model.graph
    tape = Tape(graph)
    for node in list(graph):
        if node.domain or node.op_type not in _KINDS or node.graph is None:
            continue
        approximate, function = _KINDS[node.op_type]
        found = _find(node, function, keep)
        if found is None:
            continue
        x, last, inside = found
        with tape.at(last, f"{last.name or last.outputs[0].name}/", last.metadata_props):
            (made,) = tape.custom(DOMAIN, "Gelu", 1, x, approximate=approximate)
            made.value.type, made.value.shape = x.type, x.shape
        tape.substitute(last, [made])
        graph.remove([one for one in inside if one is not last], safe=True)
        graph.opset_imports.setdefault(DOMAIN, 1)
    return model


def _find(
    node: ir.Node, function: Callable[[Array], Array], keep: Collection[str]
) -> tuple[ir.Value, ir.Node, list[ir.Node]] | None:
    """The argument, the last node and all nodes of a function that contains a node."""
    arguments = list(_before(node))
    for last in _after(node):
        for x in arguments:
            inside = _between(x, last)
            if (
                node in inside
                and dims(x) is not None
                and dims(x) == dims(last.outputs[0])
                and all(_only_inside(one, inside, keep) for one in inside if one is not last)
                and _agrees(x, last, inside, function)
            ):
                return x, last, inside
    return None


def _before(node: ir.Node) -> Iterator[ir.Value]:
    """Values that a node depends on, the nearest first."""
    found: dict[ir.Value, None] = {}
    open_nodes: list[ir.Node | None] = [node]
    while open_nodes and len(found) < _MOST_NODES:
        reader = open_nodes.pop(0)
        if reader is None or reader.op_type not in _FUNCTIONS:
            continue
        for value in reader.inputs:
            if value is not None and value not in found and constant(value) is None:
                found[value] = None
                open_nodes.append(value.producer())
                yield value


def _after(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes that read a node's result, one after the other."""
    for _ in range(_MOST_NODES):
        readers = set(node.outputs[0].consumers())
        if len(readers) != 1:
            return
        (node,) = readers
        if node.op_type not in _FUNCTIONS or node.domain:
            return
        yield node


def _between(x: ir.Value, last: ir.Node) -> list[ir.Node]:
    """The nodes that make a result of one tensor and of numbers; none where others take part."""
    inside: dict[ir.Node, None] = {last: None}
    open_nodes = [last]
    while open_nodes:
        for value in open_nodes.pop().inputs:
            if value is None or value is x or _number(value) is not None:
                continue
            producer = value.producer()
            if (
                producer is None
                or producer.domain
                or producer.op_type not in _FUNCTIONS
                or len(inside) > _MOST_NODES
            ):
                return []
            if producer not in inside:
                inside[producer] = None
                open_nodes.append(producer)
    return list(inside)


def _number(value: ir.Value) -> float | None:
    content = constant(value)
    return float(content.item()) if content is not None and content.size == 1 else None


def _only_inside(node: ir.Node, inside: Collection[ir.Node], keep: Collection[str]) -> bool:
    value = node.outputs[0]
    return (
        not value.is_graph_output()
        and value.name not in keep
        and all(reader in inside for reader in value.consumers())
    )


def _agrees(
    x: ir.Value, last: ir.Node, inside: Collection[ir.Node], function: Callable[[Array], Array]
) -> bool:
    """Whether the nodes calculate a function, at some points."""
    made: dict[ir.Value, Array] = {x: _POINTS}

    def content(value: ir.Value) -> Array:
        number = _number(value)
        if number is not None:
            return np.asarray(number)
        if value not in made:
            made[value] = calculated(value.producer())
        return made[value]

    def calculated(node: ir.Node | None) -> Array:
        assert node is not None and node in inside  # noqa: S101, PT018 - `_between` has found it
        return _FUNCTIONS[node.op_type](*(content(value) for value in node.inputs if value))

    with np.errstate(all="ignore"):
        found = calculated(last)
    return bool(np.allclose(found, function(_POINTS), rtol=0, atol=_TOLERANCE))
