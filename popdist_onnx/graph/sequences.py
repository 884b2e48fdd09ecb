"""Replaces sequences and optional values of known content by their tensors.

Exporters write splits, stacks and lists of results as sequences. No gradient flows through a
sequence, and none has to: where the file says which tensors a sequence holds, its readers read
these tensors. A sequence that is fed, or whose length only a run tells, stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.copies import copy_nodes
from popdist_onnx.graph.inference import annotate
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import constant, dims, operand, static

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist_onnx.graph.tensor import Tensor

_OLDEST_OPSET = 13
"""The first opset in which `Split` and `Unsqueeze` take lengths and axes as inputs."""

_MOST_TURNS = 256
"""Loops over sequences are written out up to this number of turns."""


@dataclass(frozen=True)
class _Optional:
    """An optional value; its content is None where it is empty."""

    content: ir.Value | tuple[ir.Value, ...] | None


_Content: TypeAlias = "ir.Value | tuple[ir.Value, ...] | _Optional"
"""A tensor, the tensors of a sequence, or an optional one of both."""


class _Contents(dict[ir.Value, "tuple[ir.Value, ...] | _Optional"]):
    """The known contents of sequences and optional values."""

    def of(self, node: ir.Node, index: int = 0) -> _Content | None:
        """The content of an input; None where it is not known."""
        value = operand(node, index)
        if value is None:
            return None
        return value if isinstance(value.type, ir.TensorType) else self.get(value)

    def parts(self, node: ir.Node, index: int = 0) -> tuple[ir.Value, ...] | None:
        """The tensors of a sequence; None where they are not known."""
        found = self.of(node, index)
        return found if isinstance(found, tuple) else None


_Rule: TypeAlias = "Callable[[Tape, ir.Node, _Contents], Sequence[_Content | Tensor] | None]"
"""The contents of a node's outputs; None where they are not known."""

_RULES: dict[str, _Rule] = {}


def _rule(op_type: str) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES[op_type] = function
        return function

    return register


def dissolve(graph: ir.Graph, opset: int) -> bool:
    """Makes readers of sequences and optional values read tensors, also in sub-graphs.

    The shapes of the nodes behind them, which were not known before, are inferred again.

    Args:
        graph: The graph, changed in place.
        opset: Its version of ``ai.onnx``.

    Returns:
        Whether a node was replaced.
    """
    if opset < _OLDEST_OPSET:
        return False
    return _dissolve(graph, opset, _Contents())


def _dissolve(graph: ir.Graph, opset: int, contents: _Contents) -> bool:
    tape, replaced, before = Tape(graph, opset=opset), False, set(graph)
    for node in list(graph):
        annotate(node, opset)
        for inner in subgraphs(node):
            replaced |= _dissolve(inner, opset, contents)
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is None:
            continue
        with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
            made = rule(tape, node, contents)
            if made is None:
                continue
            tensors = [tape.wrap(one) if isinstance(one, ir.Value) else one for one in made]
            for output, content in zip(node.outputs, tensors, strict=True):
                if isinstance(content, tuple | _Optional):
                    contents[output] = content
            if not any(isinstance(one, tuple | _Optional) for one in tensors):
                tape.substitute(node, tensors)  # type: ignore[arg-type]  # no others are left
                replaced = True
    for node in reversed(graph):
        is_known = node not in before or any(output in contents for output in node.outputs)
        if is_known and not any(one.uses() or one.is_graph_output() for one in node.outputs):
            graph.remove(node, safe=True)
    return replaced


def _number(node: ir.Node, index: int) -> int | None:
    """A whole number among the inputs; None where it is not known."""
    value = operand(node, index)
    known = None if value is None else constant(value)
    return None if known is None else int(np.asarray(known).reshape(()))


# Sequences.


@_rule("SequenceEmpty")
def _empty(_tape: Tape, _node: ir.Node, _contents: _Contents) -> list[_Content]:
    return [()]


@_rule("SequenceConstruct")
def _construct(_tape: Tape, node: ir.Node, _contents: _Contents) -> list[_Content]:
    return [tuple(value for value in node.inputs if value is not None)]


@_rule("SequenceInsert")
def _insert(_tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content] | None:
    parts, value = contents.parts(node), node.inputs[1]
    at_end = len(node.inputs) == 2 or node.inputs[2] is None  # noqa: PLR2004 - the position
    place = len(parts or ()) if at_end else _number(node, 2)
    if parts is None or place is None or value is None:
        return None
    return [(*parts[:place], value, *parts[place:])]


@_rule("SequenceErase")
def _erase(_tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content] | None:
    parts = contents.parts(node)
    is_last = len(node.inputs) == 1 or node.inputs[1] is None
    place = -1 if is_last else _number(node, 1)
    if not parts or place is None:
        return None
    place %= len(parts)
    return [(*parts[:place], *parts[place + 1 :])]


@_rule("SplitToSequence")
def _split(tape: Tape, node: ir.Node, _contents: _Contents) -> list[_Content] | None:
    sizes = _sizes(node)
    if sizes is None:
        return None
    axis = node.attributes.get_int("axis", 0)
    parts = tape.many("Split", len(sizes), node.inputs[0], tape.ints(*sizes), axis=axis)
    if len(node.inputs) == 1 and not node.attributes.get_int("keepdims", 1):
        parts = tuple(tape.Squeeze(part, tape.ints(axis)) for part in parts)
    return [tuple(part.value for part in parts)]


def _sizes(node: ir.Node) -> list[int] | None:
    """The lengths of the parts; None where they are not known."""
    x = node.inputs[0]
    given = operand(node, 1)
    split = None if given is None else constant(given)
    if given is not None and split is None:
        return None
    if split is not None and split.ndim:
        return [int(one) for one in split]
    known = None if x is None else dims(x)
    length = None if known is None else known[node.attributes.get_int("axis", 0)]
    if not isinstance(length, int):
        return None
    step = 1 if split is None else int(split)
    return [min(step, length - start) for start in range(0, length, step)]


@_rule("SequenceMap")
def _map(tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content] | None:
    body = node.attributes["body"].as_graph()
    given = [contents.of(node, index) for index in range(len(node.inputs))]
    lengths = {len(one) for one in given if isinstance(one, tuple)}
    if any(one is None or isinstance(one, _Optional) for one in given) or len(lengths) != 1:
        return None
    made: list[list[ir.Value]] = [[] for _ in body.outputs]
    for turn in range(lengths.pop()):
        inside = {
            formal: one[turn] if isinstance(one, tuple) else one
            for formal, one in zip(body.inputs, given, strict=True)
        }
        copy_nodes(tape, body, inside)  # type: ignore[arg-type]  # no optional value is among them
        for kept, output in zip(made, body.outputs, strict=True):
            kept.append(inside.get(output, output))  # type: ignore[arg-type]  # as above
    return [tuple(one) for one in made]


@_rule("SequenceAt")
def _at(tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content | Tensor] | None:
    parts, place = contents.parts(node), _number(node, 1)
    if not parts:
        return None
    if place is not None:
        return [parts[place]] if -len(parts) <= place < len(parts) else None
    if not all(static(one) for one in parts) or len({dims(one) for one in parts}) > 1:
        return None
    return [tape.Gather(_stacked(tape, parts, 0), node.inputs[1], axis=0)]


@_rule("SequenceLength")
def _length(tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content | Tensor] | None:
    parts = contents.parts(node)
    return None if parts is None else [tape.scalar(len(parts))]


@_rule("ConcatFromSequence")
def _concat(tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content | Tensor] | None:
    parts, axis = contents.parts(node), node.attributes.get_int("axis", 0)
    if not parts:
        return None
    if node.attributes.get_int("new_axis", 0):
        return [_stacked(tape, parts, axis)]
    return [tape.Concat(*parts, axis=axis)]


def _stacked(tape: Tape, parts: Sequence[ir.Value], axis: int) -> Tensor:
    return tape.Concat(*(tape.Unsqueeze(one, tape.ints(axis)) for one in parts), axis=axis)


# Optional values.


@_rule("Optional")
def _optional(_tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content] | None:
    if not any(value is not None for value in node.inputs):
        return [_Optional(None)]
    content = contents.of(node)
    return None if content is None or isinstance(content, _Optional) else [_Optional(content)]


@_rule("OptionalHasElement")
def _has_element(tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content | Tensor] | None:
    value = node.inputs[0] if node.inputs else None
    content = contents.of(node)
    if isinstance(content, _Optional):
        return [tape.constant(np.asarray(content.content is not None))]
    if value is not None and not isinstance(value.type, ir.TensorType | ir.SequenceType):
        return None
    return [tape.constant(np.asarray(value is not None))]


@_rule("OptionalGetElement")
def _element(_tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content] | None:
    content = contents.of(node)
    if isinstance(content, _Optional):
        content = content.content
    return None if content is None else [content]


# What passes them on.


@_rule("Identity")
def _same(_tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content] | None:
    content = contents.of(node)
    return [content] if isinstance(content, tuple | _Optional) else None


@_rule("Loop")
def _loop(tape: Tape, node: ir.Node, contents: _Contents) -> list[_Content | Tensor] | None:
    """The turns of a loop with sequences as states, one after the other.

    The nodes that are written read and make sequences again, which the next call replaces.
    """
    body, (_, condition, *states) = node.attributes["body"].as_graph(), node.inputs
    turns, runs = _number(node, 0), condition is None or constant(condition)
    carried = [one for one in states if one is not None and one in contents]
    if not carried or turns is None or turns > _MOST_TURNS or not runs or not _goes_on(body):
        return None
    now = [one for one in states if one is not None]
    stacked: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(now) :]]
    true = tape.constant(np.asarray(True)).value  # noqa: FBT003 - an array's only element
    for turn in range(turns):
        inside = dict(zip(body.inputs, [tape.scalar(turn).value, true, *now], strict=True))
        copy_nodes(tape, body, inside)
        made = [inside.get(output, output) for output in body.outputs[1:]]
        now = made[: len(now)]
        for kept, one in zip(stacked, made[len(now) :], strict=True):
            kept.append(one)
    if stacked and not turns:
        return None
    return [*map(tape.wrap, now), *(_stacked(tape, one, 0) for one in stacked)]


def _goes_on(body: ir.Graph) -> bool:
    """Whether no turn of a loop ends it."""
    condition: ir.Value | None = body.outputs[0]
    while condition is not None and (node := condition.producer()) is not None:
        if node.op_type != "Identity":
            known = constant(condition)
            return known is not None and bool(known)
        condition = node.inputs[0]
    return condition is body.inputs[1]
