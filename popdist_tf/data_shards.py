"""`popdist_tf.shard`: the part of a global data set that this instance trains on.

Each replica takes its rows of each global batch, so that an epoch has the updates of one process.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

import popdist
from popdist_tf.collectives.instances import place_in_job
from popdist_tf.errors import StrategyError


def shard(data: Any, batch_size: int | None = None) -> Any:
    """The part of a data set for the replicas of this instance.

    Every instance calls it with the whole data, in the same order::

        model.fit(popdist_tf.shard(data.shuffle(1000, seed=0).batch(64, drop_remainder=True)))

    Args:
        data: A `tf.data.Dataset`, or arrays of all rows as ``tf.data.Dataset.from_tensor_slices``
            takes them.
        batch_size: Rows of a global batch, that of all replicas. None where the elements of the
            data set are these batches.

    Returns:
        A data set whose elements are batches of one replica: of each global batch the rows of the
        replicas of this instance, one replica after the other.

    Raises:
        StrategyError: Batches cannot be divided by the number of replicas, or rows are shuffled in
            an order that only this instance knows. Where a size is known only when the data are
            read, it is an ``InvalidArgumentError`` then.
    """
    if not isinstance(data, tf.data.Dataset):
        data = tf.data.Dataset.from_tensor_slices(data)
    if batch_size is not None:
        data = data.batch(batch_size)
    instances, instance = place_in_job()
    local = popdist.topology().num_local_replicas
    parts, first = instances * local, instance * local
    if parts == 1:
        return data
    _require_order(data)

    def divided(value: Any) -> Any:
        rows = value.shape[0] if value.shape.rank else None
        if rows is not None and rows % parts:
            raise _indivisible(rows, parts)
        size = tf.shape(value)[0] if rows is None else rows
        check = tf.debugging.assert_equal(
            size % parts, 0, f"[PD437] a batch cannot be divided over {parts} replicas: {_HINT}"
        )
        with tf.control_dependencies([check] if rows is None and check is not None else []):
            each = size // parts
            own = tf.identity(value)[first * each : (first + local) * each]
        if local == 1:
            return own
        return tf.reshape(own, tf.concat([[local, each], tf.shape(value)[1:]], 0))

    def of_instance(*element: Any) -> Any:
        held = element if isinstance(data.element_spec, tuple) else element[0]
        return tf.nest.map_structure(divided, held)

    made = data.map(of_instance, num_parallel_calls=tf.data.AUTOTUNE)
    if local > 1:
        made = made.unbatch()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return made.with_options(options).prefetch(tf.data.AUTOTUNE)


_HINT = "use batch(rows, drop_remainder=True), with a multiple of the replicas"


def _indivisible(rows: int, parts: int) -> StrategyError:
    return StrategyError(
        "PD437",
        "a global batch cannot be divided over the replicas",
        value=rows,
        accepted=f"a multiple of {parts} rows, in every batch",
        hint=_HINT,
    )


def _require_order(data: Any) -> None:
    """Refuses a data set that shuffles without a seed: each instance would have another order."""
    seeds = [getattr(data, name, None) for name in ("_seed", "_seed2")]
    if None not in seeds and not any(int(tf.get_static_value(seed) or 0) for seed in seeds):
        raise StrategyError(
            "PD437",
            "a data set is shuffled without a seed, so each instance has another order, and the "
            "shards overlap",
            hint="shuffle(size, seed=0), or tf.random.set_seed before the data set is made",
        )
    for source in data._inputs():  # noqa: SLF001 - no public way
        _require_order(source)
