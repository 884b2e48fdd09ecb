"""Sources of samples: arrays, data sets with an index, and iterables.

Every instance of a job gets the whole data and takes its part of every global batch, so that the
samples of an update do not depend on the number of instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np

from popdist_onnx.errors import ArgumentError, popart_exception
from popdist_onnx.training.data import Array, Data, Layout, indices, sample_count, updates_of
from popdist_onnx.training.model import LABELS

if TYPE_CHECKING:
    from collections.abc import Iterator


Update: TypeAlias = "tuple[Layout, dict[str, Array]]"
"""How the samples of an update are divided, and this process's part of them by input."""


class Source(Protocol):
    """Samples, update by update."""

    samples: int | None
    """How many there are; None where only their end tells."""

    def first(self) -> dict[str, Array]:
        """A few samples, with which instances compare their data."""

    def updates(self, order: tuple[int, ...] | None) -> Iterator[Update]:
        """An epoch: for each update arrays [accumulation, local replicas, batch, ...] by input."""


class Arrays:
    """Arrays in memory, of any kind that numpy can index.

    Args:
        arrays: Arrays by input, samples first.
        layout: How they are divided.
    """

    def __init__(self, arrays: Mapping[str, Array], layout: Layout, *, drop_last: bool) -> None:
        self._arrays, self._layout = arrays, layout
        self.samples: int | None = sample_count(arrays)
        updates_of(self.samples, layout.size, drop_last=drop_last)
        self._drop_last = drop_last

    def first(self) -> dict[str, Array]:
        """All arrays, as reading a few of their samples is cheap."""
        return dict(self._arrays)

    def updates(self, order: tuple[int, ...] | None) -> Iterator[Update]:
        """An epoch in an order."""
        for layout, chosen in indices(
            self.samples or 0, self._layout, order, drop_last=self._drop_last
        ):
            yield (
                layout,
                {name: np.ascontiguousarray(one[chosen]) for name, one in self._arrays.items()},
            )


class Indexed:
    """A data set with a length and an index, such as ``torch.utils.data.Dataset``.

    Args:
        dataset: Each element is one sample: a mapping by input, or inputs and a label.
        data: The model's inputs.
        layout: How samples are divided. Only this instance's samples are read.
    """

    def __init__(self, dataset: Any, data: Data, layout: Layout, *, drop_last: bool) -> None:
        self._dataset, self._data, self._layout = dataset, data, layout
        self.samples: int | None = len(dataset)
        updates_of(len(dataset), layout.size, drop_last=drop_last)
        self._drop_last = drop_last

    def first(self) -> dict[str, Array]:
        """The first and the last sample."""
        return self._fetched(np.asarray([0, len(self._dataset) - 1]))

    def updates(self, order: tuple[int, ...] | None) -> Iterator[Update]:
        """An epoch in an order."""
        for layout, chosen in indices(
            len(self._dataset), self._layout, order, drop_last=self._drop_last
        ):
            found = self._fetched(chosen.reshape(-1))
            shaped = {n: one.reshape(*chosen.shape, *one.shape[1:]) for n, one in found.items()}
            yield layout, shaped

    def _fetched(self, chosen: Array) -> dict[str, Array]:
        samples = [_by_name(self._dataset[int(index)], self._data) for index in chosen]
        columns = {name: np.stack([_numpy(one[name]) for one in samples]) for name in samples[0]}
        return _checked(columns, self._data)


class Streamed:
    """Batches or samples of an iterable, in its own order.

    Args:
        make: Called for each epoch; returns the iterable.
        data: The model's inputs.
        layout: How samples are divided.
    """

    samples: int | None = None

    def __init__(
        self,
        make: Callable[[], Iterable[Any]],
        data: Data,
        layout: Layout,
        *,
        drop_last: bool,
    ) -> None:
        self._make, self._data, self._layout = make, data, layout
        self._drop_last = drop_last
        self._latest: dict[str, Array] = {}

    def first(self) -> dict[str, Array]:
        """The latest global batch; nothing before it, as reading a sample would consume it."""
        return self._latest

    def updates(self, order: tuple[int, ...] | None) -> Iterator[Update]:
        """An epoch, in the iterable's own order."""
        del order
        size = self._layout.size
        held: dict[str, Array] = {}
        for element in self._make():
            batch = _batched(element, self._data)
            held = {n: np.concatenate([held[n], one]) if held else one for n, one in batch.items()}
            while len(next(iter(held.values()))) >= size:
                self._latest = update = {name: one[:size] for name, one in held.items()}
                held = {name: one[size:] for name, one in held.items()}
                yield self._layout, _divided(update, self._layout)
        rest = len(next(iter(held.values()))) if held else 0
        if rest and not self._drop_last:
            self._latest = held
            layout = self._layout.rest(rest)
            yield layout, _divided(held, layout)


def _divided(samples: Mapping[str, Array], layout: Layout) -> dict[str, Array]:
    return {name: np.ascontiguousarray(layout.divided(one)) for name, one in samples.items()}


def source_of(
    inputs: Any, labels: Any, data: Data, layout: Layout, epochs: int, *, drop_last: bool
) -> Source:
    """The source for arrays, a data set, an iterable or a function that makes an iterable.

    Raises:
        ArgumentError: It is nothing of that kind, an iterator would be read twice, or labels are
            given twice.
    """
    inputs, labels = _parted(inputs, labels)
    if _are_arrays(inputs):
        return Arrays(data.named(inputs, labels), layout, drop_last=drop_last)
    _require_no_labels(inputs, labels)
    _require_pair(inputs)
    batches = isinstance(inputs, list) and not _is_sample(_arrays(inputs[0], data), data)
    if not _streams(inputs) and not batches and _is_indexed(inputs):
        return Indexed(inputs, data, layout, drop_last=drop_last)
    make = _maker(inputs)
    if isinstance(inputs, Iterable) and iter(inputs) is inputs and epochs > 1:
        raise ArgumentError(
            "PD586",
            "an iterator can be gone through once only, but there are several epochs",
            value=f"epochs={epochs}",
            hint="give the function that makes it: fit(make_batches, epochs=...)",
        )
    return Streamed(make, data, layout, drop_last=drop_last)


def gathered(inputs: Any, labels: Any, data: Data) -> dict[str, Array]:
    """All samples of what `source_of` takes, as arrays by input.

    Raises:
        ArgumentError: It is nothing of that kind, or labels are given twice.
        popart_exception: There are no samples, or they do not fit the model.
    """
    inputs, labels = _parted(inputs, labels)
    if _are_arrays(inputs):
        return data.named(inputs, labels)
    _require_no_labels(inputs, labels)
    batches = [_batched(element, data) for element in _maker(inputs)()]
    if not batches:
        raise popart_exception("PD586", "the data have no samples", value=type(inputs).__name__)
    return {name: np.concatenate([one[name] for one in batches]) for name in batches[0]}


def _parted(inputs: Any, labels: Any) -> tuple[Any, Any]:
    """Inputs and labels, where both arrays come as one tuple."""
    if isinstance(inputs, str | bytes):
        raise ArgumentError(
            "PD586", "the data are a text", value=inputs, accepted="arrays, or data sets"
        )
    pair = isinstance(inputs, tuple) and len(inputs) == len(("inputs", "labels"))
    if labels is None and pair and all(hasattr(one, "__array__") for one in inputs):
        return inputs[0], inputs[1]
    return inputs, labels


def _require_no_labels(inputs: Any, labels: Any) -> None:
    if labels is not None:
        if isinstance(inputs, tuple) and all(hasattr(one, "__array__") for one in inputs):
            raise ArgumentError(
                "PD586",
                "arrays of several inputs come by their ids",
                value=f"a tuple of {len(inputs)} arrays",
                hint='fit({"x0": first, "x1": second}, labels)',
            )
        raise ArgumentError(
            "PD586",
            "a data set brings its labels itself",
            value=type(labels).__name__,
            hint="let each element be (inputs, labels), and leave labels out",
        )


def _require_pair(inputs: Any) -> None:
    """Refuses a tuple that is no pair of arrays, and whose parts would count as samples."""
    short = isinstance(inputs, tuple) and len(inputs) <= len(("inputs", "labels"))
    if short and not any(isinstance(one, tuple | Mapping) for one in inputs):
        raise ArgumentError(
            "PD586",
            "a tuple of data has two arrays: inputs and labels",
            value=[type(one).__name__ for one in inputs],
            accepted="(inputs, labels), both arrays",
            hint="np.asarray makes an array of a list",
        )


def _streams(inputs: Any) -> bool:
    """Whether only iterating reads it: a function, or a data set of TensorFlow."""
    makes = callable(inputs) and not isinstance(inputs, Iterable)
    return makes or hasattr(inputs, "as_numpy_iterator")


def _is_indexed(inputs: Any) -> bool:
    return hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__")


def _maker(inputs: Any) -> Callable[[], Iterable[Any]]:
    """A function that makes an iterable of the elements.

    Raises:
        ArgumentError: There is nothing to iterate.
    """
    if hasattr(inputs, "as_numpy_iterator"):
        return cast("Callable[[], Iterable[Any]]", inputs.as_numpy_iterator)
    if _streams(inputs):
        return cast("Callable[[], Iterable[Any]]", inputs)
    if _is_indexed(inputs):
        return lambda: (inputs[place] for place in range(len(inputs)))
    if not isinstance(inputs, Iterable):
        raise ArgumentError(
            "PD586",
            "these are not data to train with",
            value=type(inputs).__name__,
            accepted="arrays, a data set with an index, something to iterate, or a function that "
            "returns something to iterate",
        )
    return lambda: inputs


def _are_arrays(inputs: Any) -> bool:
    """Whether a program gives all samples at once: an array, nested lists, or arrays by id."""
    if isinstance(inputs, Mapping) or hasattr(inputs, "__array__"):
        return True
    return isinstance(inputs, list) and not _are_samples(inputs)


def _are_samples(inputs: list[Any]) -> bool:
    """Whether a list has samples: mappings by input, or tuples such as (inputs, label)."""
    first = inputs[0] if inputs else None
    if isinstance(first, tuple):
        return any(hasattr(part, "shape") for part in first)
    return isinstance(first, Mapping)


def _batched(element: Any, data: Data) -> dict[str, Array]:
    """An element as a batch; a single sample is one of a batch of one."""
    arrays = _arrays(element, data)
    single = _is_sample(arrays, data)
    return _checked({n: one[None] for n, one in arrays.items()} if single else arrays, data)


def _arrays(element: Any, data: Data) -> dict[str, Array]:
    return {name: _numpy(one) for name, one in _by_name(element, data).items()}


def _is_sample(arrays: Mapping[str, Array], data: Data) -> bool:
    """Whether arrays have the shapes of one sample."""
    return all(
        name in data.shapes and one.shape == data.shapes[name] for name, one in arrays.items()
    )


def _by_name(element: Any, data: Data) -> dict[str, Any]:
    """An element's parts by input: a mapping, (inputs, labels), or what the only input takes."""
    if isinstance(element, Mapping):
        return dict(element)
    parts = list(element) if isinstance(element, tuple | list) else [element]
    if parts and isinstance(parts[0], Mapping):
        named, rest = dict(parts[0]), parts[1:]
        missing = [name for name in data.shapes if name not in named]
    else:
        named, rest, missing = {}, parts, list(data.shapes)
    if len(rest) != len(missing):
        raise popart_exception(
            "PD586",
            "an element of the data has another number of parts than the model has inputs",
            value=len(parts),
            accepted=f"({', '.join(data.shapes)}), or a dictionary of these",
        )
    return named | dict(zip(missing, rest, strict=True))


def _numpy(part: Any) -> Array:
    # Tensors of torch with gradients or on devices have methods that give plain tensors.
    return np.asarray(part.detach().cpu() if hasattr(part, "detach") else part)


def _checked(arrays: Mapping[str, Array], data: Data) -> dict[str, Array]:
    """Checks the arrays of an element; numbers of the same kind become the model's type."""
    wide = {
        name: one.astype(data.types[name])
        if name in data.types and one.dtype.kind == data.types[name].kind
        else one
        for name, one in arrays.items()
    }
    labels = wide.pop(LABELS, None)
    return data.named(wide, labels)
