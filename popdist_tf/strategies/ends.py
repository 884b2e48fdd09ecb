"""Data sets of unknown length: do all instances have another batch?

A known number of batches is compared before the first step. Where it is unknown (generators,
filters), an instance that runs out early would leave the others waiting in their next reduction.
So there every batch is announced, in a number that is summed over the instances, and so is the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives

_MESSAGE = (
    "[PD413] the instances have different numbers of batches: at least one of them has no more "
    "data and others have. Give all instances as many, by dataset.take(n) or steps_per_epoch. "
    "Instances that still have data, and all instances:"
)


def with_agreed_end(dataset: Any, collectives: HostCollectives, number: int) -> Any:
    """Makes a data set end on all instances together, or stop with an explanation.

    Args:
        dataset: A data set of unknown length.
        collectives: The job's collectives.
        number: Which of the job's data sets this is, the same on all instances.

    Returns:
        The same elements.
    """
    name = f"popdist_batches_of_data_set_{number}"

    def announce(has_batch: bool) -> Any:
        holders = collectives.sum_by_name(tf.constant(int(has_batch)), name)
        equal = (holders == 0) | (holders == collectives.size)
        return tf.debugging.Assert(equal, [_MESSAGE, holders, collectives.size])

    def announced(*element: Any) -> Any:
        with tf.control_dependencies([announce(has_batch=True)]):
            held = tf.nest.map_structure(tf.identity, element, expand_composites=True)
        return held if len(held) > 1 else held[0]

    def never(*_: Any) -> Any:
        with tf.control_dependencies([announce(has_batch=False)]):
            return tf.constant(value=False)

    # An empty data set of the same structure, which says so when it is reached.
    end = dataset.take(0)
    last = tf.data.Dataset.range(1).filter(never).flat_map(lambda _: end)
    options = tf.data.Options()
    # Batches that nobody asked for would be announced by instances that prefetch alone.
    options.experimental_optimization.inject_prefetch = False
    return dataset.map(announced).concatenate(last).with_options(options)
