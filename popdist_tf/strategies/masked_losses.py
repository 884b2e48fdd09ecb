"""Means of masked losses over all replicas.

Keras divides the sum of a masked loss by the values that the mask leaves (steps of a sequence that
are not padding, labels that are not ignored). Each replica would divide by its own number, and the
mean of these means is another number than one process computes: values of a replica with few of
them would count more. Under the strategies here, each replica divides by its part of the number of
all replicas.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.patches import surround
from popdist_tf.versions import keras_is_3

_MEANS = ("auto", "sum_over_batch_size", "mean")


def share_masks() -> None:
    """Makes Keras count what masks leave on all replicas; safe to call again."""
    module, name = _place()

    def share(known: Any, *args: Any, **kwargs: Any) -> Any:
        names = known.__code__.co_varnames
        kind = "dtype" if "dtype" in names[: known.__code__.co_argcount] else "losses"
        given = dict(zip(names, args, strict=False)) | kwargs
        if given["mask"] is not None and given["reduction"] in _MEANS and _is_shared():
            dtype = getattr(given[kind], "dtype", given[kind])
            given |= {"mask": _shared(given["mask"], dtype), "reduction": "none"}
        return known(**given)

    surround(module, name, "masks", share)


def _place() -> tuple[Any, str]:
    if keras_is_3():
        return import_module("keras.src.losses.loss"), "apply_mask"
    return import_module("keras.src.utils.losses_utils"), "apply_valid_mask"


def _is_shared() -> bool:
    """Whether the code that is built or run is that of one of several replicas that sum."""
    strategy = tf.distribute.get_strategy()
    extended = strategy.extended
    return bool(
        hasattr(extended, "guard")
        and strategy.num_replicas_in_sync > 1
        and getattr(extended, "reduces_on_device", True)
        and tf.distribute.get_replica_context() is not None
    )


def _shared(mask: Any, dtype: Any) -> Any:
    """A mask by which the mean over replicas is the mean over all values that masks leave."""
    context = tf.distribute.get_replica_context()
    held = tf.cast(mask, dtype)
    # float16 and bfloat16 cannot count, and float32 would round the quotient for float64.
    left = tf.reduce_sum(tf.cast(mask, tf.float64))
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, left)
    size = tf.cast(tf.size(held), tf.float64) * context.num_replicas_in_sync
    return held * tf.cast(size / total, dtype)
