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
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from popdist_onnx.graph.compat import inputs_of
from popdist_onnx.runtime.wiring import names_read
from popdist_onnx.training.amounts import spell_out
from popdist_onnx.training.evaluation import Evaluator
from popdist_onnx.training.loss_reading import Reader
from popdist_onnx.training.loss_rewriting import INPUT, Rewriting
from popdist_onnx.training.loss_terms import is_sum, read_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from popdist_onnx.training.data import Array, Layout
    from popdist_onnx.training.sources import Source

logger = logging.getLogger("popdist.onnx")


class Divisors:
    """The numbers of a whole batch that a loss is made of, which become inputs of the model.

    Args:
        proto: The model with its loss and a fixed batch size, changed in place.
        loss: The loss.
        layout: How samples are divided.
        original: The model before its batch size was fixed, which made constants of sizes.

    Attributes:
        is_judged: Whether no measurement of parts is needed, as the loss is named.
    """

    def __init__(
        self, proto: onnx.ModelProto, loss: str, layout: Layout, original: onnx.ModelProto
    ) -> None:
        self._layout = layout
        self._values: dict[str, onnx.ValueInfoProto] = {}
        self._sums: str | None = None
        self._constant: dict[str, Array] | None = None
        self._inputs: list[str] = []
        spell_out(proto)
        self._reader = reader = Reader(proto, original)
        plans, self._sums = read_terms(reader, loss, layout.parts)
        self.is_judged = self._sums is not None
        if not plans:
            return
        self._statistics = {
            INPUT.format(name): reader.makers[name]
            for plan in plans
            for name, valued in plan.statistics.items()
            if valued
        }
        needed = _model_of(proto, self._statistics)
        self._inputs = [one.name for one in needed.graph.input]
        self._evaluator = Evaluator(needed, self._statistics, layout.batch)
        self._labels = {name: self._labels_of(node) for name, node in self._statistics.items()}
        for plan in plans:
            rewriting = Rewriting(proto, reader, plan, layout.parts)
            rewriting.apply()
            self._values |= rewriting.inputs

    def _labels_of(self, node: onnx.NodeProto) -> tuple[int, str, int] | None:
        """The number of labels that a statistic counts, these labels, and what is left out."""
        counted = self._reader.labels_counted(node.output[0])
        shape = self._reader.shape(counted[0]) if counted is not None else None
        if counted is None or shape is None or self._reader.axes(node) is not None:
            return None
        return int(np.prod(shape)), *counted

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
        whole = {
            name: one[0] * self._layout.parts
            for name, one in self._labels.items()
            if one is not None and self._reader.counts_all(*one[1:], samples)
        }
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
        return self._layout.parts if is_sum(self._statistics[name]) else 1

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
        kinds = {name: value.type.tensor_type.elem_type for name, value in self._values.items()}
        return {
            name: np.asarray(number, helper.tensor_dtype_to_np_dtype(kinds[name]))
            for name, number in numbers.items()
        }

    def _filled(self, numbers: Mapping[str, float | Array]) -> dict[str, Array]:
        """An array for all parts of this process, by input."""
        leading = (self._layout.accumulation, self._layout.job.local_replicas)
        made = {}
        for name, value in self._values.items():
            kind = value.type.tensor_type
            shape = (*leading, *(dim.dim_value for dim in kind.shape.dim))
            made[name] = np.empty(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type))
            np.copyto(made[name], numbers[name], casting="unsafe")
        return made


def _model_of(proto: onnx.ModelProto, statistics: Mapping[str, onnx.NodeProto]) -> onnx.ModelProto:
    """A model that computes statistics of one micro-batch from the inputs that they need."""
    ends = [one for name, node in statistics.items() for one in _widened(node, name)]
    needed, kept = set(statistics), []
    for node in (*reversed(ends), *reversed(proto.graph.node)):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(names_read(node))
    graph = proto.graph
    initializers = [one for one in graph.initializer if one.name in needed]
    inputs = [one for one in inputs_of(graph) if one.name in needed]
    reader = Reader(proto)
    outputs = [
        helper.make_tensor_value_info(
            name, onnx.TensorProto.DOUBLE, reader.shape(node.output[0]) or []
        )
        for name, node in statistics.items()
    ]
    made = helper.make_graph(kept[::-1], "statistics", inputs, outputs, initializers)
    return helper.make_model(
        made, opset_imports=list(proto.opset_import), ir_version=proto.ir_version
    )


def _widened(node: onnx.NodeProto, name: str) -> Sequence[onnx.NodeProto]:
    """A statistic in float64; sums are computed in it."""
    wide = f"{name}/wide"
    if node.op_type not in ("ReduceSum", "ReduceMean"):
        return [helper.make_node("Cast", [node.output[0]], [name], to=onnx.TensorProto.DOUBLE)]
    cast = helper.make_node("Cast", [node.input[0]], [wide], to=onnx.TensorProto.DOUBLE)
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[0], made.output[0] = wide, name
    return [cast, made]
