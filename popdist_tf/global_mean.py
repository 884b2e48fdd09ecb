"""Means over all elements of a global batch, where its parts have different numbers of them.

A mean over the valid tokens of each replica's rows, averaged over replicas, counts a token less
where there are more. `global_mean` counts all tokens alike.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.collectives.instances import job_collectives


def global_mean(total: Any, count: Any) -> Any:
    """The mean over all elements of a global batch, from a sum and a number of each part.

    The result is this replica's part of the mean, for custom ``train_step`` methods and loops of
    your own. Under a strategy, which adds up the gradients of its replicas, the results of all
    replicas add up to the mean. With `popdist_tf.keras.DistributedOptimizer`, which averages
    gradients over instances, the average of all results is the mean. All replicas must call it. If
    several passes make an update, ``count`` is the number of elements of all of them.

    Keras divides what a loss of ``compile`` returns by the number of replicas of a strategy: return
    ``global_mean(total, count) * tf.distribute.get_strategy().num_replicas_in_sync`` there.

    Args:
        total: The sum over the elements, such as the losses of valid tokens.
        count: Their number, or the sum of their weights; it may be zero.

    Returns:
        A scalar loss; zero where no replica has an element.

    Example:
        ::

            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores) * mask
            loss = popdist_tf.keras.global_mean(tf.reduce_sum(losses), tf.reduce_sum(mask))
    """
    held = tf.convert_to_tensor(total)
    kind = tf.float64 if held.dtype == tf.float64 else tf.float32  # half precision cannot count
    number = tf.stop_gradient(tf.cast(count, kind))
    strategy, context = tf.distribute.get_strategy(), tf.distribute.get_replica_context()
    replicas = strategy.num_replicas_in_sync
    if replicas > 1 and context is not None:
        counted = context.all_reduce(tf.distribute.ReduceOp.SUM, number)
        parts = 1 if getattr(strategy.extended, "reduces_on_device", True) else replicas
    else:
        collectives = job_collectives()
        parts = collectives.size
        counted = number if collectives.horovod is None else collectives.allreduce(number)
    factor = tf.math.divide_no_nan(tf.cast(parts, kind), counted)
    return held * tf.cast(tf.stop_gradient(factor), held.dtype)
