"""The pass that replaces each node of ``ai.graphcore`` by nodes of ``ai.onnx``.

Called graphs are inlined at the call, and their nodes are lowered there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.errors import (
    NotOnHostError,
    UnknownShapeError,
    ValueRangeError,
    popart_exception,
    popart_internal_exception,
)
from popdist_onnx.graph import names
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.copies import copy_nodes
from popdist_onnx.graph.inference import inference
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape, Tensor
from popdist_onnx.graph.values import constant
from popdist_onnx.lowering.indices import moved_rows
from popdist_onnx.lowering.registry import DOMAIN, LOWERINGS, Operation, lowering

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from popdist_onnx.graph.copies import Inside
    from popdist_onnx.graph.inference import Info


OPSET = 18
"""The oldest ``ai.onnx`` opset that lowerings write."""

_OF_TRAINING = ("GradCopyToHost", "GradCopyFromHost")
"""Operators that the runtime carries out between sessions."""


class Lower(Pass):
    """Rewrites the operators of ``ai.graphcore`` into ``ai.onnx``; names of values stay.

    Needs: opset 18 or newer. Leaves: no operator of ``ai.graphcore``, apart from those in ``keep``
    and the gradient copies, which the runtime carries out between sessions.

    Args:
        keep: Operators that stay, for example because autodiff has rules for them.
    """

    def __init__(self, keep: Collection[str] = ()) -> None:
        self.keep = frozenset({*keep, *_OF_TRAINING})

    def requires(self, model: ir.Model) -> None:
        """Checks the opset.

        Raises:
            popart_internal_exception: The opset is older than the opset that lowerings write.
        """
        if (opset := model.opset_imports.get("", 0)) < OPSET:
            raise popart_internal_exception(
                "PD511", "Lower was given a model of an older opset", value=opset, accepted="18 on"
            )

    def change(self, model: ir.Model) -> bool:
        """Rewrites the operators; false where there are none."""
        return self._lower(model.graph, model.opset_imports[""], "")

    def ensures(self, model: ir.Model) -> None:
        """Checks that the graph is sound, and that no operator is left to lower.

        Raises:
            popart_internal_exception: An operator is left.
        """
        super().ensures(model)
        if left := [node.op_type for node in model.graph.all_nodes() if self._concerns(node)]:
            raise popart_internal_exception("PD511", "Lower left operators", value=left)

    def _concerns(self, node: ir.Node) -> bool:
        return node.domain == DOMAIN and node.op_type not in self.keep

    def _lower(self, graph: ir.Graph, opset: int, scope: str) -> bool:
        changed = False
        tape = Tape(graph, opset=opset)
        # A call brings the nodes of its graph, which may need lowering too.
        while nodes := [node for node in graph if self._concerns(node)]:
            changed = True
            for node in nodes:
                _require_lowering(node)
                if scope and node.op_type == "Abort":
                    raise NotOnHostError(
                        "PD503",
                        "abort inside of a loop or a branch cannot be expressed for a host",
                        value=scope.rstrip("/"),
                        hint="return the condition, and abort([condition]) in the main graph",
                    )
                _lower_node(tape, node, scope)
        for node in graph:
            for inner in subgraphs(node) if node.domain != DOMAIN else ():
                changed |= self._lower(inner, opset, f"{node.outputs[0].name}/")
        return changed


def lower(model: ir.Model, *, keep: Collection[str] = ()) -> ir.Model:
    """Rewrites the operators of ``ai.graphcore`` into ``ai.onnx``; see `Lower`.

    Args:
        model: The model, changed in place.
        keep: Operators that are not replaced, for example because autodiff has rules for them.

    Returns:
        The same model.

    Raises:
        NotOnHostError: The model has an abort inside of a loop or a branch.
        ValueRangeError: An operator's operands do not fit each other.
        popart_exception: There is no such operator, or it needs a shape that is not known.
    """
    Lower(keep)(model)
    return model


def _require_lowering(node: ir.Node) -> None:
    if node.op_type in LOWERINGS:
        return
    raise popart_exception(
        "PD511",
        f"ai.graphcore has no operator {node.op_type} that a host can run",
        value=node.name or [output.name for output in node.outputs],
        hint=did_you_mean(node.op_type, LOWERINGS),
    )


def _lower_node(tape: Tape, node: ir.Node, scope: str) -> None:
    tape.metadata = dict(node.metadata_props)
    # An abort has no outputs.
    stem = node.outputs[0].name if node.outputs else node.name
    with tape.at(node, f"{scope}{stem}/"):
        tape.substitute(node, _written(tape, node))


def _written(tape: Tape, node: ir.Node) -> list[Tensor]:
    try:
        results = LOWERINGS[node.op_type](Operation(tape, node))
    except popart_exception:
        raise
    except ValueError as unknown:
        # The error of a tensor whose type or shape is not known.
        raise popart_exception(
            "PD511",
            f"{node.op_type} of '{node.outputs[0].name}' cannot be lowered: {unknown}",
            hint="give the model's inputs fixed shapes, for example with InputShapeInfo",
        ) from None
    return [results] if isinstance(results, Tensor) else list(results)


def outputs_of(node: ir.Node) -> Sequence[Info]:
    """Types and shapes of the outputs of a node's lowering; empty where inputs are not known."""
    if any(value is not None and value.dtype is None for value in node.inputs):
        return []
    if any(value is not None and value.shape is None for value in node.inputs):
        return []
    scratch = Tape(ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="scratch"))
    try:
        results = _written(scratch, _shadow(scratch, node))
    except UnknownShapeError:  # a sub-graph in a builder is still in its own opset
        return []
    return [(one.value.dtype, one.dims) for one in results]


def _shadow(tape: Tape, node: ir.Node) -> ir.Node:
    # A copy on values of its own: a scratch graph must not add uses to the real values.
    inputs: list[ir.Value | None] = []
    for value in node.inputs:
        content = None if value is None else constant(value)
        if value is None:
            inputs.append(None)
        elif content is not None:
            inputs.append(tape.constant(content).value)
        else:
            inputs.append(ir.Value(name=value.name, shape=value.shape, type=value.type))
    outputs = [ir.Value(name=value.name) for value in node.outputs]
    attributes = list(node.attributes.values())
    return ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs)


def register_inference() -> None:
    """Registers inference of types and shapes for every operator that has a lowering."""
    inference(DOMAIN, *LOWERINGS)(outputs_of)


# Called sub-graphs, inlined at the call, printed tensors, and flags that end a run.


logger = logging.getLogger("popdist.onnx.builder")


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
