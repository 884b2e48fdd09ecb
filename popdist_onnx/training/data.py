"""Checks arrays against the inputs of a model, and divides them into updates and replicas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.values import lengths
from popdist_onnx.training.model import LABELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_onnx.training.local_replicas import LocalReplicas


Array = np.ndarray[Any, np.dtype[Any]]


class Data(NamedTuple):
    """The inputs of a model.

    Attributes:
        shapes: The shape of one sample of each input, the labels of a loss included.
        types: The element type of each of them.
        classes: The number of classes of the labels; None where labels are not class numbers.
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype[Any]]
    classes: int | None = None

    @classmethod
    def of(cls, model: ir.Model, classes: int | None) -> Data:
        """Reads inputs and types from a model with its loss and with fixed shapes."""
        inputs = {str(one.name): one for one in model.graph.inputs if not one.is_initializer()}
        return cls(
            {name: (lengths(one) or ())[1:] for name, one in inputs.items()},
            {name: (one.dtype or ir.DataType.FLOAT).numpy() for name, one in inputs.items()},
            classes,
        )

    def named(self, inputs: object, labels: object = None) -> dict[str, Array]:
        """Checked arrays by input; labels are None where there is nothing to compare.

        Raises:
            popart_exception: The arrays do not belong to the model's inputs, or do not fit them.
        """
        wanted = [name for name in self.shapes if name != LABELS]
        if not isinstance(inputs, Mapping):
            if len(wanted) != 1:
                raise popart_exception(
                    "PD579",
                    "the model has several inputs, but one array was given",
                    accepted=f"arrays by id: {', '.join(wanted)}",
                )
            inputs = {wanted[0]: inputs}
        elif labels is None and LABELS in inputs:
            inputs = dict(inputs)
            labels = inputs.pop(LABELS)
        if labels is None and LABELS in self.shapes:
            raise popart_exception(
                "PD579",
                "the loss compares with labels, but no labels were given",
                value=sorted(inputs),
                hint="fit(inputs, labels), or a dictionary with 'labels'",
            )
        given = dict(inputs) if labels is None else {**inputs, LABELS: labels}
        known = {*wanted, LABELS} if labels is not None else set(wanted)
        if set(given) != known:
            raise popart_exception(
                "PD579",
                "the data are not those of the model's inputs",
                value=sorted(given),
                accepted=", ".join(sorted(known)),
            )
        return {name: self._fitting(name, content) for name, content in given.items()}

    def _fitting(self, name: str, content: object) -> Array:
        array = np.asarray(content)
        if name not in self.shapes:
            raise popart_exception(
                "PD579",
                "labels were given, but the model computes its loss without them",
                hint='leave them out, or train with loss="cross_entropy" or loss="mse"',
            )
        shape, dtype = self.shapes[name], self.types[name]
        # Lists hold Python's numbers, and every integer type can hold class numbers.
        whole = self.classes is not None and name == LABELS and array.dtype.kind in "iu"
        if array.dtype != dtype and (whole or not isinstance(content, np.ndarray)):
            array = array.astype(dtype)
        if not _fits(array.shape[1:], shape):
            hint = None
            if sorted(array.shape[1:]) == sorted(shape):
                hint = f"reorder the axes with numpy.transpose({name}, ...)"
            elif name == LABELS and array.shape[-1:] == (self.classes,):
                hint = "cross entropy takes class numbers: labels.argmax(-1) of one-hot labels"
            raise popart_exception(
                "PD579",
                f"the samples of {name} have another shape than the model's input",
                value=list(array.shape[1:]),
                accepted=str(list(shape)),
                hint=hint,
            )
        if name == LABELS and self.classes is not None and array.dtype.kind in "iu":
            self._require_classes(array)
        return array

    def _require_classes(self, labels: Array) -> None:
        if labels.size and not 0 <= labels.min() <= labels.max() < (self.classes or 0):
            raise popart_exception(
                "PD579",
                "labels are numbers of classes that the model does not have",
                value=f"{labels.min()} to {labels.max()}",
                accepted=f"0 to {(self.classes or 0) - 1}, one class per element of the output",
            )


def _fits(have: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether shapes agree but for dimensions of length 1, as in columns of labels."""
    return [n for n in have if n != 1] == [n for n in wanted if n != 1]


def sample_count(arrays: Mapping[str, Array]) -> int:
    """The number of samples of a data set.

    Raises:
        popart_exception: There are no arrays, or their numbers of samples differ.
    """
    counts = {name: len(array) for name, array in arrays.items() if array.ndim}
    if len(set(counts.values())) != 1 or len(counts) != len(arrays):
        raise popart_exception(
            "PD579",
            "the arrays of a data set need the same number of samples, first dimension",
            value={name: array.shape for name, array in arrays.items()},
        )
    return next(iter(counts.values()))


# How the samples of an epoch are divided into updates, micro-batches and replicas.


_MOST = 4
"""How many times as large as others the micro-batches of a smaller update may be."""


class Layout:
    """How samples are divided into updates.

    Args:
        batch: Samples of a micro-batch.
        accumulation: Micro-batches per update and replica.
        job: Which replicas are this instance's.
        samples: Different samples of an update, each of which several replicas compute where their
            number does not divide by that of replicas; None where each belongs to one replica.
    """

    def __init__(
        self, batch: int, accumulation: int, job: LocalReplicas, samples: int | None = None
    ) -> None:
        self.batch, self.accumulation, self.job = batch, accumulation, job
        self.shape = (accumulation, job.total_replicas, batch)
        self.places = accumulation * job.total_replicas * batch
        self.size = self.places if samples is None else samples
        self.own = accumulation * job.local_replicas * batch
        self.parts = accumulation * job.total_replicas

    def rest(self, samples: int) -> Layout:
        """The layout of a smaller update, in which each sample has the same weight.

        Where replicas cannot have equal parts, each sample is computed by as many replicas as make
        the parts equal. Micro-batches are as near to the usual size as division allows.
        """
        each = samples // math.gcd(samples, self.job.total_replicas)
        fitting = [one for one in _divisors(each) if one <= _MOST * self.batch]
        batch = min(fitting, key=lambda one: abs(math.log(one / self.batch)))
        return Layout(batch, each // batch, self.job, samples)

    def divided(self, samples: Array) -> Array:
        """This process's part of an update's samples: ``[accumulation, replicas, batch, ...]``."""
        every = np.concatenate([samples] * (self.places // self.size))
        return every.reshape(*self.shape, *samples.shape[1:])[:, self.job.own]


@cache
def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def updates_of(samples: int, size: int, *, drop_last: bool) -> int:
    """The number of updates in an epoch.

    Args:
        samples: How many samples there are.
        size: Samples of a whole update.
        drop_last: Whether a smaller one at the end is left out.

    Raises:
        popart_exception: There are no samples, or fewer than one update where the rest is left out.
    """
    if samples < (size if drop_last else 1):
        raise popart_exception(
            "PD579",
            "the data set is smaller than one global batch" if samples else "there are no samples",
            value=f"{samples} samples",
            accepted=f"at least {size} (batch size x accumulation x replicas of the job)",
            hint="smaller batch_size or accumulation, fewer replicas, or drop_last=False",
        )
    return samples // size if drop_last else -(-samples // size)


def indices(
    samples: int, layout: Layout, order: tuple[int, ...] | None, *, drop_last: bool
) -> Iterator[tuple[Layout, Array]]:
    """Indices ``[accumulation, local replicas, batch]`` of a process, update by update.

    All processes draw the same order from the seeds ``order``; None keeps the order of the samples.
    A global batch is divided by accumulation step, then replica. A smaller update at the end has a
    layout of its own.
    """
    order_of = (
        np.arange(samples) if order is None else np.random.default_rng(order).permutation(samples)
    )
    for update in range(updates_of(samples, layout.size, drop_last=drop_last)):
        chosen = order_of[update * layout.size : (update + 1) * layout.size]
        of = layout if len(chosen) == layout.size else layout.rest(len(chosen))
        yield of, of.divided(chosen)
