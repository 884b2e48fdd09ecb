"""Called sub-graphs, inlined at the call, printed tensors, and flags that end a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import ValueRangeError
from popdist_onnx.graph import names
from popdist_onnx.graph.copies import copy_nodes
from popdist_onnx.lowering.indices import moved_rows
from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.copies import Inside
    from popdist_onnx.graph.tensor import Tensor


@lowering("Call")
def call(op: Operation) -> list[Tensor]:
    """The callee's nodes on the caller's tensors; its weights become the caller's."""
    return _inlined(op, op.node.attributes["callee"].as_graph(), op.inputs)


def _inlined(op: Operation, callee: ir.Graph, arguments: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a graph for arguments."""
    tape = op.tape
    parameters = [one for one in callee.inputs if one.name not in callee.initializers]
    if len(arguments) != len(parameters):
        raise _mismatch(op, "inputs", len(arguments), len(parameters))
    if op.node.op_type == "Call" and len(op.node.outputs) != len(callee.outputs):
        raise _mismatch(op, "outputs", len(op.node.outputs), len(callee.outputs))
    inside: Inside = dict(zip(parameters, [one.value for one in arguments], strict=True))
    for value in callee.initializers.values():
        inside[value] = _shared(op, value)
    scope, tape.scope = tape.scope, f"{tape.fresh('call')}/"
    copy_nodes(tape, callee, inside)
    tape.scope = scope
    return [tape.Identity(inside.get(one, one)) for one in callee.outputs]


def _mismatch(op: Operation, what: str, given: int, taken: int) -> ValueRangeError:
    name = str(op.node.outputs[0].name).partition(":")[0]
    return ValueRangeError(
        "PD510",
        f"For CallOp '{'' if name == op.node.op_type else name}', number of {what} ({given}) does "
        f"not match that of the callee subgraph ({taken})",
    )


@lowering("PackedDataBlock")
def packed_data_block(op: Operation) -> Tensor:
    """A graph on batches of padded sequences, whose results are packed again.

    The operands are data, offsets and lengths of each packed tensor, then offsets and lengths in
    the result. Padding is zero, and so are the result's rows that no sequence covers.

    Source: from memory; the order of the operands is not confirmed by a published source.
    """
    longest = op.numbers("maxSequenceLengths")
    *packed, starts, lengths = op.inputs
    _require_packed(op, longest)
    tape, sequences = op.tape, starts.shape[0]
    parts = zip(packed[::3], packed[1::3], packed[2::3], longest, strict=True)
    padded = [_padded(data, offsets, counts, most) for data, offsets, counts, most in parts]
    batch = op.number("callbackBatchSize", 1)
    callback = op.node.attributes["callback"].as_graph()
    if len(callback.outputs) != 1:
        raise op.misfit("takes a sub-graph with one output", value=len(callback.outputs))
    made = [
        _inlined(op, callback, [tape.Slice(one, [at], [at + batch], [0]) for one in padded])[0]
        for at in range(0, sequences, batch)
    ]
    whole = tape.Concat(*made, axis=0)
    if whole.rank < 2 or whole.shape[0] != sequences:  # noqa: PLR2004 - batch and sequence
        raise op.misfit(
            "takes a sub-graph whose output is [callbackBatchSize, length, ...]",
            value=list(made[0].lengths),
        )
    length = whole.shape[1]
    rows = tape.Reshape(whole, [sequences * length, *whole.shape[2:]])
    kept = tape.Min(tape.Cast(lengths, to=ir.DataType.INT64), length)
    begins = tape.constant(np.arange(sequences) * length)
    return moved_rows(rows, op.number("resultSize", 0), kept, begins, starts)


def _require_packed(op: Operation, longest: Sequence[int]) -> None:
    wanted = 3 * len(longest) + 2
    if len(op.inputs) != wanted:
        raise op.misfit(
            "takes data, offsets and lengths for each of maxSequenceLengths, then offsets and "
            "lengths in the result",
            value=f"{len(op.inputs)} inputs",
            accepted=str(wanted),
        )
    numbers = [one for place, one in enumerate(op.inputs) if place % 3 or place == wanted - 2]
    shapes = {one.lengths for one in numbers}
    whole = all(one.dtype.is_integer() for one in numbers)
    batch = op.number("callbackBatchSize", 1)
    if len(shapes) != 1 or len(numbers[0].lengths) != 1 or not whole:
        raise op.misfit(
            "takes one offset and one length for each sequence",
            value=[f"{one.dtype.name} {list(one.lengths)}" for one in numbers],
            accepted="whole numbers of shape [sequences]",
        )
    sequences = numbers[0].shape[0]
    if batch < 1 or not sequences or sequences % batch:
        raise op.misfit(
            "takes a callbackBatchSize that divides the number of sequences",
            value=batch,
            accepted=f"a divisor of {sequences}",
        )


def _padded(data: Tensor, offsets: Tensor, lengths: Tensor, most: int) -> Tensor:
    """Packed sequences as ``[sequences, most, ...]``, with zeros after each."""
    tape = data.tape
    offsets, lengths = (
        tape.Reshape(tape.Cast(one, to=ir.DataType.INT64), [-1, 1]) for one in (offsets, lengths)
    )
    steps = tape.constant(np.arange(most).reshape(1, -1))
    inside = steps < lengths
    places = tape.Where(inside, offsets + steps, tape.scalar(0))
    # A place beyond the data stops the step, as a sequence that is longer than it may be has to.
    places = tape.Where(lengths > most, tape.scalar(data.shape[0]), places)
    inside = tape.Reshape(inside, [*inside.shape, *[1] * (data.rank - 1)])
    return tape.Where(inside, tape.Gather(data, places, axis=0), tape.scalar(0, data.dtype))


def _shared(op: Operation, value: ir.Value) -> ir.Value:
    # Every call of a sub-graph uses the same weights.
    graph = op.tape.graph
    name = str(value.name)
    if name not in graph.initializers and value.const_value is not None:
        return op.tape.state(name, value.const_value.numpy()).value
    return graph.initializers[name]


@lowering("PrintTensor")
def print_tensor(op: Operation) -> Tensor:
    """The input; the session prints it and its gradient."""
    (x,) = op.inputs
    made = op.tape.Identity(x)
    title = op.text("title", "")
    notes = made.value.producer().metadata_props  # type: ignore[union-attr]
    notes[names.PRINTED] = title or x.name
    if op.number("print_gradient", 1):
        notes[names.PRINTED_GRADIENT] = f"{title}_gradient" if title else names.gradient(x.name)
    return made


@lowering("Abort")
def abort(op: Operation) -> list[Tensor]:
    """A flag that the session reads after each run; always true without a condition."""
    tape, text = op.tape, f"abort '{op.node.name}'"
    if op.inputs:
        (condition,) = op.inputs
        text += f" of tensor '{condition.name}'"
        hit = tape.Cast(tape.Cast(condition, to=ir.DataType.BOOL), to=ir.DataType.INT32)
        flag = tape.Cast(tape.ReduceMax(hit, keepdims=0), to=ir.DataType.BOOL)
    else:
        flag = tape.Identity(tape.constant(np.asarray(True)))  # noqa: FBT003 - a tensor's content
    scope, tape.scope = tape.scope, ""
    flag = tape.rename(flag, tape.fresh(f"{names.ABORT}{op.node.name}"))
    tape.scope = scope
    flag.value.producer().metadata_props[names.ABORT_OF] = text  # type: ignore[union-attr]
    return []
