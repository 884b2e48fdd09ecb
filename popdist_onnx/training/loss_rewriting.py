"""Rewrites terms of a loss so that their statistics are those of the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.graph.compat import FLOATING
from popdist_onnx.graph.copies import copy_nodes
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import lengths
from popdist_onnx.training.amounts import WIDE
from popdist_onnx.training.loss_terms import is_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.copies import Inside
    from popdist_onnx.training.loss_reading import Reader
    from popdist_onnx.training.loss_terms import TermPlan

INPUT = "popdist.divisor/{}"
"""The input that has the number of the whole batch for a statistic."""

_COPY = "popdist.whole/{}/"
_OURS = "ai.graphcore"


def rewrite(
    model: ir.Model, reader: Reader, plans: Sequence[TermPlan], parts: int
) -> dict[ir.Value, ir.Value]:
    """Rewrites terms, in place.

    Args:
        model: The model.
        reader: Facts about it.
        plans: The terms and their statistics.
        parts: Parts of a global batch.

    Returns:
        The new inputs by statistic.
    """
    graph = model.graph
    graph.opset_imports.setdefault(_OURS, 1)
    tape = Tape(graph)
    inputs: dict[ir.Value, ir.Value] = {}
    # Copies are made of the model as it was read: terms are replaced when all are there.
    readers = [plan.term.uses() for plan in plans]
    wholes = [_Copies(tape, reader, plan, parts, inputs).of(plan.term) for plan in plans]
    for plan, uses, whole in zip(plans, readers, wholes, strict=True):
        term, name = plan.term, tape.release(plan.term)
        term.name = f"{_COPY.format(name)}part/{name}"
        new = tape.many("Cast", [name], whole, to=int(term.dtype or ir.DataType.FLOAT))[0].value
        for node, index in uses:
            node.replace_input_with(index, new)
        for index, output in enumerate(graph.outputs):
            if output is term:
                graph.outputs[index] = new
    graph.sort()
    return inputs


class _Copies:
    """Copies the nodes between the statistics of a term and the term, with other statistics.

    In half precision the copies are computed in float32: sums of rows may be infinite in it, where
    their mean is not.

    Args:
        tape: Writes the copies.
        reader: What the model was before all rewriting.
        plan: The term and its statistics.
        parts: Parts of a global batch.
        inputs: The new inputs by statistic, to which those of the term are added.
    """

    def __init__(
        self, tape: Tape, reader: Reader, plan: TermPlan, parts: int, inputs: Inside
    ) -> None:
        self._tape, self._reader, self._plan, self._parts = tape, reader, plan, parts
        tape.scope = _COPY.format(plan.term.name)
        self._inputs = inputs
        self._copies: Inside = {}
        self._inner: dict[ir.Value, bool] = {}

    def of(self, value: ir.Value) -> ir.Value:
        """The tensor with other statistics; without any the tensor itself, in float32 at least."""
        if value not in self._copies:
            self._copies[value] = self._copied(value)
        return self._copies[value]

    def _copied(self, value: ir.Value) -> ir.Value:
        node = value.producer()
        if node is None or not self._has_statistics(value):
            return self._widened(value)
        inside = {one: self.of(one) for one in node.inputs if one is not None}
        if all(one is copy for one, copy in inside.items()):
            made = value
        elif node.op_type == "Cast" and value.dtype in FLOATING:
            made = self._cast(next(iter(inside.values())), value.dtype)
        else:
            copy_nodes(self._tape, [node], inside)
            made = inside[value]
        return self._of_the_job(value, made) if value in self._plan.statistics else made

    def _widened(self, value: ir.Value) -> ir.Value:
        """A tensor in float32, where it is in half precision."""
        half = value.dtype in FLOATING and value.dtype not in WIDE
        return self._cast(value, ir.DataType.FLOAT) if half else value

    def _cast(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        """A tensor in another type of numbers, at least float32."""
        wide = kind if kind in WIDE else ir.DataType.FLOAT
        return self._tape.Cast(value, to=int(wide)).value

    def _has_statistics(self, value: ir.Value | None) -> bool:
        """Whether statistics of the term are before a tensor, or are the tensor."""
        if value is None or value in self._plan.statistics or value not in self._plan.path:
            return value in self._plan.statistics
        if value not in self._inner:
            node = value.producer()
            inputs = () if node is None else node.inputs
            self._inner[value] = any(map(self._has_statistics, inputs))
        return self._inner[value]

    def _of_the_job(self, value: ir.Value, made: ir.Value) -> ir.Value:
        """A statistic as the whole batch has it."""
        node, tape = value.producer(), self._tape
        factor = self._parts if node is not None and is_sum(node) else 1
        if not self._plan.statistics[value]:
            return self._times(made, factor)
        kind = made.dtype or ir.DataType.FLOAT
        if value not in self._inputs:
            shape = lengths(value) or ()
            self._inputs[value] = tape.input(INPUT.format(value.name), kind, shape).value
        given = self._inputs[value]
        if kind not in FLOATING or not self._reader.is_trained(value):
            return given
        fixed = tape.custom(_OURS, "Detach", 1, made)[0]
        change = self._times(tape.Sub(made, fixed).value, factor)
        return tape.Add(given, change).value

    def _times(self, value: ir.Value, factor: int) -> ir.Value:
        return value if factor == 1 else self._tape.Mul(value, factor).value
