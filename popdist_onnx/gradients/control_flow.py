"""Gradients through the graphs inside of `If`, `Loop` and `Scan`.

A body is differentiated as a graph of its own: its nodes are written once more (their results of
the forward half are gone by then), followed by their gradients, which may hold bodies again.

- `If`: the gradient is an `If` of the same condition whose branches give the gradients of all that
  either branch reads from outside.
- `Loop` and `Scan`: the forward half also gives the states that each turn began with. The gradient
  runs the turns from the last to the first. It carries the gradients of the states, and the sums
  of those of the values from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.compat import FLOATING, captured
from popdist_onnx.graph.copies import copy_nodes, empty_graph
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import dims

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_onnx.graph.copies import Inside
    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.graph.values import Dim

_TURN = 0
_CONDITION = 1
_STATES = 2
"""Inputs of a `Loop` and its body: how many turns or which one, whether to go on, the states."""


@gradient("If")
def _if(at: At) -> Mapping[ir.Value, Tensor]:
    outside = _outside(at)
    if not outside:
        return {}
    branches = {}
    for name in ("then_branch", "else_branch"):
        branch = at.node.attributes[name].as_graph()
        tape = _inner(at, name)
        inside: Inside = {}
        copy_nodes(tape, branch, inside)
        ends = zip(branch.outputs, at.gradients, strict=True)
        seeds = [(inside.get(end, end), g) for end, g in ends if g is not None]
        found = at.reverse(tape.graph, seeds, outside)
        for value in outside:
            tape.graph.outputs.append(_or_zeros(tape, found.get(value), value).value)
        branches[name] = tape.graph
    made = at.tape.many("If", len(outside), at.x, **branches)
    return dict(zip(outside, _described(made, outside), strict=True))


@gradient("Loop")
def _loop(at: At) -> Mapping[ir.Value, Tensor]:
    body = at.node.attributes["body"].as_graph()
    formals = body.inputs[_STATES:]
    count = len(formals)
    # The turns themselves and the states before each of them.
    turns, *before = _with_more_outputs(at, body, [body.inputs[_TURN], *formals], {})
    outside = _outside(at)
    floating = [number for number, value in enumerate(formals) if value.dtype in FLOATING]

    tape = _inner(at, "body")
    number = tape.input(f"{tape.scope}turn", ir.DataType.INT64, ())
    tape.input(f"{tape.scope}condition", ir.DataType.BOOL, ())
    carried = [_carried(tape, formals[one], "state", one) for one in floating]
    sums = [_carried(tape, value, "sum", one) for one, value in enumerate(outside)]
    total = at.tape.Squeeze(at.tape.Shape(turns), [0])
    turn = tape.Sub(tape.Sub(total, 1), number)

    def of_turn(stacked: Tensor) -> Tensor:
        return tape.Gather(stacked, turn, axis=0)

    true = tape.constant(np.asarray(True))  # noqa: FBT003 - an array's only element
    inside: Inside = {body.inputs[_TURN]: of_turn(turns).value, body.inputs[_CONDITION]: true.value}
    inside.update({value: of_turn(all_).value for value, all_ in zip(formals, before, strict=True)})
    copy_nodes(tape, body, inside)
    ends = body.outputs[1 : 1 + count]
    seeds = [
        (inside.get(ends[one], ends[one]), g) for one, g in zip(floating, carried, strict=True)
    ]
    for stacked, g in zip(body.outputs[1 + count :], at.gradients[count:], strict=False):
        if g is not None:
            seeds.append((inside.get(stacked, stacked), of_turn(g)))
    starts = [inside[formals[one]] for one in floating]
    found = at.reverse(tape.graph, seeds, [*starts, *outside])
    following = [_or_zeros(tape, found.get(value), value) for value in starts]
    following += [_added(one, found.get(v)) for one, v in zip(sums, outside, strict=True)]
    end = Tape(tape.graph, scope=f"{tape.scope}end/", metadata=tape.metadata)
    true = end.constant(np.asarray(True))  # noqa: FBT003 - an array's only element
    tape.graph.outputs.extend(end.Identity(one).value for one in (true, *following))

    begun = [at.g_of(one) for one in floating] + [_zeros(at.tape, value) for value in outside]
    made = at.tape.many("Loop", len(begun), total, None, *begun, body=tape.graph)
    entered = [at.node.inputs[_STATES + one] for one in floating]
    return _summed([*entered, *outside], _described(made, [*entered, *outside]))


@gradient("Scan")
def _scan(at: At) -> Mapping[ir.Value, Tensor]:
    body = at.node.attributes["body"].as_graph()
    walked = at.node.attributes.get_int("num_scan_inputs", 0)
    count = len(body.inputs) - walked
    formals, elements = body.inputs[:count], body.inputs[count:]
    stacked = len(body.outputs) - count
    ways_in = list(at.get("scan_input_directions", [0] * walked))
    axes_in = list(at.get("scan_input_axes", [0] * walked))
    ways_out = list(at.get("scan_output_directions", [0] * stacked))
    axes_out = list(at.get("scan_output_axes", [0] * stacked))
    more = {
        "scan_output_directions": [*ways_out, *[0] * count],
        "scan_output_axes": [*axes_out, *[0] * count],
    }
    before = _with_more_outputs(at, body, formals, more)
    outside = _outside(at)
    floating = [number for number, value in enumerate(formals) if value.dtype in FLOATING]
    flowing = [number for number, value in enumerate(elements) if value.dtype in FLOATING]
    read = [one for one in range(stacked) if at.gradients[count + one] is not None]

    tape = _inner(at, "body")
    carried = [_carried(tape, formals[one], "state", one) for one in floating]
    sums = [_carried(tape, value, "sum", one) for one, value in enumerate(outside)]
    inside: Inside = {}
    for kind, values in (("before", formals), ("element", elements)):
        for place, value in enumerate(values):
            inside[value] = _carried(tape, value, kind, place).value
    steps = [_carried(tape, body.outputs[count + one], "gradient", one) for one in read]
    copy_nodes(tape, body, inside)
    ends = [body.outputs[one] for one in floating] + [body.outputs[count + one] for one in read]
    seeds = [(inside.get(end, end), g) for end, g in zip(ends, [*carried, *steps], strict=True)]
    starts = [inside[formals[one]] for one in floating]
    pieces = [inside[elements[one]] for one in flowing]
    found = at.reverse(tape.graph, seeds, [*starts, *pieces, *outside])
    following = [_or_zeros(tape, found.get(value), value) for value in starts]
    following += [_added(one, found.get(v)) for one, v in zip(sums, outside, strict=True)]
    following += [_or_zeros(tape, found.get(value), value) for value in pieces]
    tape.graph.outputs.extend(tape.Identity(one).value for one in following)

    begun = [at.g_of(one) for one in floating] + [_zeros(at.tape, value) for value in outside]
    sequences = [at.input(count + one) for one in range(walked)]
    made = at.tape.many(
        "Scan",
        len(following),
        *begun,
        *before,
        *sequences,
        *[at.g_of(count + one) for one in read],
        body=tape.graph,
        num_scan_inputs=count + walked + len(read),
        scan_input_directions=[
            *[1] * count,
            *[1 - way for way in ways_in],
            *[1 - ways_out[one] for one in read],
        ],
        scan_input_axes=[*[0] * count, *axes_in, *[axes_out[one] for one in read]],
        scan_output_directions=[1 - ways_in[one] for one in flowing],
        scan_output_axes=[axes_in[one] for one in flowing],
    )
    entered = [at.node.inputs[one] for one in floating]
    followed = [at.node.inputs[count + one] for one in flowing]
    targets = [*entered, *outside, *followed]
    return _summed(targets, _described(made, targets))


def _outside(at: At) -> list[ir.Value]:
    """What the node's graphs read from outside and gradients are needed of."""
    return [value for value in captured(at.node) if value in at.reached]


def _inner(at: At, name: str) -> Tape:
    """A tape for the gradient of one of the node's graphs."""
    scope = f"{at.tape.fresh(name)}/"
    graph = empty_graph(scope.rstrip("/"), at.tape.opset)
    return Tape(graph, scope=scope, metadata=at.tape.metadata, opset=at.tape.opset)


def _with_more_outputs(
    at: At, body: ir.Graph, more: Sequence[ir.Value], attributes: Mapping[str, Any]
) -> list[Tensor]:
    """Writes the node again, so that it also gives some of its body's values, turn by turn."""
    node, tape = at.node, at.tape
    inner = Tape(body, scope=f"{tape.fresh('turns')}/", opset=tape.opset)
    for value in more:
        body.outputs.append(inner.Identity(value).value)
    settings = {name: one.value for name, one in node.attributes.items()} | dict(attributes)
    had = len(node.outputs)
    with tape.at(node, f"{node.name or node.op_type}/", node.metadata_props):
        made = tape.custom(node.domain, node.op_type, had + len(more), *node.inputs, **settings)
        for old, new in zip(node.outputs, made, strict=False):
            new.value.type, new.value.shape = old.type, old.shape
        lead: Dim = None
        for value, new in zip(more, made[had:], strict=True):
            new.value.type = value.type
            known = dims(value)
            new.value.shape = None if known is None else ir.Shape([lead, *known])
        tape.substitute(node, made[:had])
    at.node = made[0].value.producer() or node
    return list(made[had:])


def _carried(tape: Tape, like: ir.Value, kind: str, number: int) -> Tensor:
    """An input of a body for something of a value's type and shape."""
    if like.dtype is None:
        raise ValueError(f"the type of {like.name!r} is not known")
    made = tape.input(f"{tape.scope}{kind}_{number}", like.dtype, dims(like) or ())
    if like.shape is None:
        made.value.shape = None
    return made


def _zeros(tape: Tape, value: ir.Value) -> Tensor:
    return shape_ops.zeros(tape.wrap(value))


def _or_zeros(tape: Tape, found: Tensor | None, like: ir.Value) -> Tensor:
    """A gradient as a node's own output, as those of a body must be; zeros where none arrived."""
    return tape.Identity(_zeros(tape, like) if found is None else found)


def _added(total: Tensor, found: Tensor | None) -> Tensor:
    return total if found is None else total + found


def _described(made: Sequence[Tensor], like: Sequence[ir.Value | None]) -> Sequence[Tensor]:
    """Gradients have the types and shapes of what they are gradients of."""
    for one, value in zip(made, like, strict=True):
        if value is not None:
            one.value.type, one.value.shape = value.type, value.shape
    return made


def _summed(
    values: Sequence[ir.Value | None], gradients: Sequence[Tensor]
) -> dict[ir.Value, Tensor]:
    """Gradients by value; a value that enters at several places gets their sum."""
    found: dict[ir.Value, Tensor] = {}
    for value, one in zip(values, gradients, strict=True):
        if value is not None:
            found[value] = found[value] + one if value in found else one
    return found
