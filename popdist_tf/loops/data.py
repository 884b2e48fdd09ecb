"""Data sets of loops: whole groups of elements, measured speeds, and synthetic elements.

Synthetic data are asked for as published, by the variable ``TF_POPLAR_FLAGS`` of the environment.
They tell what a program takes without its input. Of the published categories, a host replaces the
infeeds; it always computes the outfeeds.
"""

from __future__ import annotations

import json
import os
import shlex
import warnings
from enum import Enum
from typing import Any

import numpy as np
import tensorflow.compat.v2 as tf

from popdist_tf.errors import LayerError


def BufferDataset(input_dataset: Any, buffer_size: int) -> Any:  # noqa: N802 - published name
    """A data set whose number of elements is a multiple of a number.

    Args:
        input_dataset: The elements.
        buffer_size: The number; elements behind the last multiple are left out.

    Returns:
        A `tf.data.Dataset`.

    Raises:
        LayerError: The number is not positive.
    """
    size = tf.get_static_value(buffer_size)
    if size is not None and size < 1:
        raise LayerError("PD434", "buffer_size must be at least 1", value=buffer_size)

    is_tuple = isinstance(input_dataset.element_spec, tuple)

    def elements(*parts: Any) -> Any:
        of_parts = parts if is_tuple else parts[0]
        held = tf.nest.map_structure(lambda one: one.batch(buffer_size), of_parts)
        return tf.data.Dataset.zip(held).unbatch()

    return input_dataset.window(buffer_size, drop_remainder=True).flat_map(elements)


def dataset_benchmark(
    dataset: Any,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> Any:
    """Measures how fast a data set is read.

    Args:
        dataset: The data set; it is read from its beginning.
        number_of_epochs: How often the speed is measured.
        elements_per_epochs: Elements that are read for each measurement.
        print_stats: Whether to print each measurement.
        apply_debug_options: Accepted as published, without effect.
        do_memcpy: Accepted as published: elements are in the host's memory, and are not copied.

    Returns:
        One string, in JSON: ``{"epochs": [...]}`` with ``elements_processed``,
        ``total_bytes_processed``, ``time_elapsed`` (seconds), ``elements_per_second`` and
        ``bandwidth`` (gigabytes a second) of each measurement. In a graph, each run measures again.

    Raises:
        LayerError: A number is not positive.
        OutOfRangeError: The data set has fewer elements.
        ValueError: A dimension of its elements is 0; an InvalidArgumentError where a graph runs.
    """
    del apply_debug_options, do_memcpy
    for name, number in (("epochs", number_of_epochs), ("elements", elements_per_epochs)):
        if number < 1:
            raise LayerError("PD434", f"the number of {name} must be at least 1", value=number)
    wanted = number_of_epochs * elements_per_epochs
    specs = tf.nest.flatten(dataset.element_spec, expand_composites=True)
    is_empty = any(0 in (spec.shape.as_list() if spec.shape.rank else ()) for spec in specs)

    def note(state: tuple[Any, Any, Any], *element: Any) -> tuple[Any, Any, Any]:
        count, sizes, ends = state
        parts = tf.nest.flatten(element, expand_composites=True)
        with tf.control_dependencies(parts):
            now = tf.timestamp()
        size = sum(tf.size(one, tf.int64) * one.dtype.size for one in parts)
        epoch = [[count // elements_per_epochs]]
        return (
            count + 1,
            tf.tensor_scatter_nd_add(sizes, epoch, [size]),
            tf.tensor_scatter_nd_update(ends, epoch, [now]),
        )

    begin = tf.timestamp()
    with tf.control_dependencies([begin]):
        start = (
            tf.constant(0),
            tf.zeros([number_of_epochs], tf.int64),
            tf.zeros([number_of_epochs], tf.float64),
        )
    count, sizes, ends = dataset.take(wanted).reduce(start, note)

    def report(count: Any, begin: Any, sizes: Any, ends: Any) -> Any:
        if is_empty:
            raise ValueError("Detected a tensor in the dataset with a dimension of size 0")
        if count < wanted:
            raise StopIteration(f"the data set has {count} elements, and {wanted} were asked for")
        found = []
        for size, before, end in zip(sizes, [begin, *ends[:-1]], ends, strict=True):
            spent = max(float(end - before), _RESOLUTION)
            found.append(
                {
                    "elements_processed": elements_per_epochs,
                    "total_bytes_processed": int(size),
                    "time_elapsed": spent,
                    "elements_per_second": elements_per_epochs / spent,
                    "bandwidth": size / spent / 1e9,
                }
            )
            if print_stats:
                print(json.dumps(found[-1]))  # noqa: T201 - asked for
        return np.array([json.dumps({"epochs": found})], object)

    made = tf.numpy_function(report, [count, begin, sizes, ends], tf.string)
    return tf.ensure_shape(made, [1])


_RESOLUTION = 1e-6  # of the clock, in seconds


def infeed_benchmark(
    infeed_queue: Any,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> Any:
    """Measures how fast the data set of an infeed queue is read.

    Args:
        infeed_queue: The queue; its own place in the data is kept.
        number_of_epochs: As for `dataset_benchmark`, like all others.
        elements_per_epochs: Elements that are read for each measurement.
        print_stats: Whether to print each measurement.
        do_memcpy: Accepted as published.

    Returns:
        As `dataset_benchmark`.

    Raises:
        LayerError: A number is not positive.
        OutOfRangeError: The data set has fewer elements.
    """
    return dataset_benchmark(
        infeed_queue.dataset,
        number_of_epochs,
        elements_per_epochs,
        print_stats,
        do_memcpy=do_memcpy,
    )


class SyntheticDataCategory(Enum):
    """Data that the original can replace by data of the device."""

    Infeed = "infeed"
    Outfeed = "outfeed"
    Seed = "seed"
    HostEmbedding = "hostembedding"
    Parameters = "parameters"


def use_synthetic_data_for(synthetic_data_category: SyntheticDataCategory) -> bool:
    """Whether data of a category are replaced.

    Args:
        synthetic_data_category: The category.

    Returns:
        True where the program's ``TF_POPLAR_FLAGS`` ask for it, by ``--use_synthetic_data`` or
        ``--synthetic_data_categories=infeed,outfeed``. A host replaces the infeeds alone.

    Raises:
        LayerError: There is no such category.
    """
    if not isinstance(synthetic_data_category, SyntheticDataCategory):
        raise LayerError(
            "PD434",
            "there is no such category of synthetic data",
            value=synthetic_data_category,
            accepted=", ".join(
                f"SyntheticDataCategory.{one.name}" for one in SyntheticDataCategory
            ),
        )
    flags = _flags()
    asked = flags.get("synthetic_data_categories", "").lower().split(",")
    is_asked = flags.get("use_synthetic_data", "false").lower() in {"", "true", "1"}
    return is_asked or synthetic_data_category.value in map(str.strip, asked)


def _flags() -> dict[str, str]:
    flags = {}
    for word in shlex.split(os.environ.get("TF_POPLAR_FLAGS", "")):
        name, _, value = word.lstrip("-").partition("=")
        flags[name] = value
    return flags


def synthetic_or_real(dataset: Any) -> Any:
    """A data set, or where that is asked for one as long with synthetic elements of its shapes.

    Args:
        dataset: Whose elements have fixed shapes.

    Raises:
        LayerError: The initializer is neither a number nor ``random``.
    """
    if not use_synthetic_data_for(SyntheticDataCategory.Infeed):
        return dataset
    filled = _flags().get("synthetic_data_initializer") or "0"
    try:
        number = None if filled == "random" else float(filled)
    except ValueError:
        raise LayerError(
            "PD434",
            "synthetic data cannot be made in this way",
            value=f"--synthetic_data_initializer={filled}",
            accepted="a number, or random",
            hint="it is a word of the environment variable TF_POPLAR_FLAGS",
        ) from None
    warnings.warn(
        "TF_POPLAR_FLAGS asks for synthetic data: infeed queues do not read their data sets.",
        stacklevel=3,
    )

    def fill(spec: Any) -> Any:
        if number is not None:
            return tf.cast(tf.fill(spec.shape, number), spec.dtype)
        if spec.dtype.is_floating:
            return tf.random.uniform(spec.shape, dtype=spec.dtype)
        # The range of integers is not known; these are indices of any table, and of any class.
        return tf.cast(tf.random.uniform(spec.shape, 0, 2, tf.int32), spec.dtype)

    size = tf.data.experimental.cardinality(dataset)
    is_known = tf.greater_equal(size, 0)
    count = tf.where(is_known, size, tf.constant(-1, tf.int64))
    made = tf.data.Dataset.range(1).repeat(count)
    return made.map(lambda _: tf.nest.map_structure(fill, dataset.element_spec))
