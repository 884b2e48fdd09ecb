"""Computes the terms of a loss from the whole global batch, as one process would.

A mean over labels that count, over weights of classes or over a mask has another divisor in each
part of a global batch, so that the mean of the parts is not that of the whole batch. So has a curve
of a mean, such as its root. Before an update such numbers of all micro-batches of all replicas are
computed, and their sum (or mean) over the job becomes an input of the graph.

Where weights are trained through such a number, the input has its value, and the number itself
gives the gradient of this part; the job takes the mean of these::

    sum of the job + parts * (s - detach(s))        mean of the job + (m - detach(m))

A part in which nothing counts then adds nothing; its own mean would be 0 / 0.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph.compat import clone, keep_only
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import lengths
from popdist_onnx.training.amounts import spell_out
from popdist_onnx.training.evaluation import Evaluator
from popdist_onnx.training.loss_reading import Reader, axes_of, counts_all, labels_counted
from popdist_onnx.training.loss_rewriting import INPUT, rewrite
from popdist_onnx.training.loss_terms import is_sum, read_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from popdist_onnx.training.data import Array, Layout
    from popdist_onnx.training.sources import Source

logger = logging.getLogger("popdist.onnx")

_DOUBLE = int(ir.DataType.DOUBLE)


class Divisors:
    """The numbers of a whole batch that a loss is made of, which become inputs of the model.

    Args:
        model: The model with its loss and a fixed batch size, changed in place.
        loss: The loss.
        layout: How samples are divided.
        original: The model before its batch size was fixed, which made constants of sizes.

    Attributes:
        is_judged: Whether no measurement of parts is needed, as the loss is named.
    """

    def __init__(self, model: ir.Model, loss: str, layout: Layout, original: ir.Model) -> None:
        self._layout = layout
        self._values: dict[str, ir.Value] = {}
        self._constant: dict[str, Array] | None = None
        spell_out(model)
        reader = Reader(model, original)
        term = ir.convenience.create_value_mapping(model.graph)[loss]
        plans, self._sums = read_terms(reader, term, layout.parts)
        self.is_judged = self._sums is not None
        if not plans:
            return
        needed = [one for plan in plans for one, valued in plan.statistics.items() if valued]
        statistics = _model_of(model, dict.fromkeys(needed))
        self._inputs = [str(one.name) for one in statistics.graph.inputs]
        outputs = [str(one.name) for one in statistics.graph.outputs]
        self._evaluator = Evaluator(statistics, outputs, layout.batch)
        inputs = rewrite(model, reader, plans, layout.parts)
        self._values = {str(given.name): given for given in inputs.values()}
        self._statistics = {str(given.name): one for one, given in inputs.items()}

    @property
    def names(self) -> list[str]:
        """The inputs; none where the loss adds up as it is."""
        return list(self._values)

    def prepare(self, source: Source, *, warn: bool = True) -> bool:
        """Warns of sums; checks whether samples of a `fit` leave labels out at all.

        Args:
            source: The samples.
            warn: Whether this process may warn.

        Returns:
            Whether numbers are exchanged for each update. All instances must agree on it.
        """
        if warn and self._layout.job.first and self._sums is not None:
            logger.warning("%s", self._sums)
        if not self._values:
            return False
        first = source.first()
        samples = first if all(len(one) == source.samples for one in first.values()) else {}
        numbers = {name: _labels_of(one, samples) for name, one in self._statistics.items()}
        parts = self._layout.parts
        whole = {name: number * parts for name, number in numbers.items() if number is not None}
        every = whole.keys() == self._values.keys()
        self._constant = self._filled(whole) if every else None
        return self._constant is None

    def of(
        self, step: Mapping[str, Array], weights: Callable[[], Mapping[str, Array]]
    ) -> dict[str, Array]:
        """The inputs of an update, the same for all of its parts.

        Args:
            step: The samples of this process, [accumulation, local replicas, batch, ...] by input.
            weights: Returns the present weights by id.
        """
        if self._constant is not None:
            return self._constant
        flat = {name: step[name] for name in self._inputs}
        flat = {name: one.reshape(-1, *one.shape[3:]) for name, one in flat.items()}
        totals: dict[str, Array] = {}
        for _, found in self._evaluator.run(weights(), flat, self._layout.own):
            for name in self._values:
                totals[name] = totals.get(name, 0.0) + found[name]
        numbers = {
            f"{name}/{place}": float(number)
            for name, total in totals.items()
            for place, number in enumerate(total.reshape(-1))
        }
        summed = list(self._layout.job.summed(numbers).values())
        for name, total in totals.items():
            whole, summed = np.reshape(summed[: total.size], total.shape), summed[total.size :]
            totals[name] = whole * self.factor(name) / self._layout.parts
        return self._filled(totals)

    def factor(self, name: str) -> int:
        """By how much the number of a part counts in that of the whole: by all parts in a sum."""
        node = self._statistics[name].producer()
        return self._layout.parts if node is not None and is_sum(node) else 1

    def total(self, name: str, numbers: Sequence[Array]) -> Array:
        """The number of the whole batch from those of all parts."""
        total: Array = np.mean(numbers, axis=0) * self.factor(name)
        return total

    def numbers(
        self, weights: Mapping[str, Array], part: Mapping[str, Array], samples: int
    ) -> dict[str, Array]:
        """The numbers of one part of a batch, of which the whole batch's are made."""
        if not self._values:
            return {}
        data = {name: part[name] for name in self._inputs}
        _, found = next(self._evaluator.run(weights, data, samples))
        return {name: found[name].copy() for name in self._values}

    def filled(self, numbers: Mapping[str, Array]) -> dict[str, Array]:
        """Numbers in the types of the inputs."""
        return {name: np.asarray(one, self._dtype(name)) for name, one in numbers.items()}

    def _filled(self, numbers: Mapping[str, float | Array]) -> dict[str, Array]:
        """An array for all parts of this process, by input."""
        leading = (self._layout.accumulation, self._layout.job.local_replicas)
        made = {}
        for name, value in self._values.items():
            made[name] = np.empty((*leading, *(lengths(value) or ())), self._dtype(name))
            np.copyto(made[name], numbers[name], casting="unsafe")
        return made

    def _dtype(self, name: str) -> np.dtype[Any]:
        return (self._values[name].dtype or ir.DataType.FLOAT).numpy()


def _labels_of(statistic: ir.Value, samples: Mapping[str, Array]) -> int | None:
    """The number of labels that a statistic counts; None unless samples show that all count."""
    node, counted = statistic.producer(), labels_counted(statistic)
    shape = lengths(counted[0]) if counted is not None else None
    if counted is None or shape is None or node is None or axes_of(node) is not None:
        return None
    return math.prod(shape) if counts_all(*counted, samples) else None


def _model_of(model: ir.Model, statistics: Iterable[ir.Value]) -> ir.Model:
    """A model that computes statistics of one micro-batch from the inputs that they need."""
    made = clone(model)
    graph, tape = made.graph, Tape(made.graph)
    twins = ir.convenience.create_value_mapping(graph)
    needed = keep_only(graph, [_widened(tape, twins[str(one.name)]) for one in statistics])
    for value in list(graph.inputs):
        if value not in needed:
            graph.inputs.remove(value)
    for name, value in list(graph.initializers.items()):
        if value not in needed:
            del graph.initializers[name]
    return made


def _widened(tape: Tape, statistic: ir.Value) -> ir.Value:
    """A statistic in float64; sums are computed in it."""
    node, names = statistic.producer(), [INPUT.format(statistic.name)]
    if node is None or node.op_type not in ("ReduceSum", "ReduceMean"):
        return tape.many("Cast", names, statistic, to=_DOUBLE)[0].value
    wide = tape.Cast(node.inputs[0], to=_DOUBLE)
    stated = {name: one.value for name, one in node.attributes.items()}
    made = tape.many(node.op_type, names, wide, *node.inputs[1:], **stated)[0].value
    made.shape = statistic.shape
    return made
