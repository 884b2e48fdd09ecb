"""A warning of a mean over a replica's own rows, whose gradients a strategy sums.

Keras divides its losses by the number of replicas. A loop of the program has to do it by itself:
with ``tf.reduce_mean`` alone, an update is as many times that of one process as there are replicas,
without an error. The target of a gradient says which it is, in a function that TensorFlow builds.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.guards.local_clips import place
from popdist_tf.guards.means import warn

_MARK = "_popdist_targets"
# Between a loss and its mean: what neither divides nor multiplies.
_PASSED = {"AddN", "AddV2", "Cast", "Identity", "StopGradient"}


def note_targets() -> None:
    """Makes tapes note the means that they compute gradients of; safe to call again."""
    kind: Any = tf.GradientTape
    known = kind.gradient
    if hasattr(known, _MARK):
        return

    @functools.wraps(known)
    def gradient(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        operation = None if tf.executing_eagerly() else getattr(target, "op", None)
        if operation is not None and (mean := _mean(operation)) is not None:
            setattr(operation.graph, _MARK, mean)
        return known(self, target, *args, **kwargs)

    setattr(gradient, _MARK, True)
    kind.gradient = gradient


def warn_of_local_mean(_: Any, __: Any, gradients: list[Any]) -> None:
    """Warns on the job's first replica, where a strategy of several replicas sums gradients."""
    replica, strategy = tf.distribute.get_replica_context(), tf.distribute.get_strategy()
    if replica is None or not getattr(strategy.extended, "reduces_on_device", True):
        return
    replicas = strategy.extended._num_replicas_in_sync
    graphs = [] if tf.executing_eagerly() else [getattr(one, "graph", None) for one in gradients]
    mean = next((known for one in graphs if (known := getattr(one, _MARK, None))), None)
    # A program that divides by itself asks for the number of replicas somewhere.
    if mean is None or replicas == 1 or getattr(strategy, "has_been_asked", True):
        return
    if replica._replica_id_in_sync_group == 0:  # the number, not a tensor
        strategy.has_warned_of_mean = True
        warn(
            f"a loss is the mean over the rows of one replica ({place(mean)}), and gradients are "
            f"summed over {replicas} replicas: an update is {replicas} times that of one process. "
            "Divide the mean by strategy.num_replicas_in_sync, or use tf.nn.compute_average_loss "
            "with the rows of all replicas as its global_batch_size."
        )


def _mean(operation: Any) -> Any:
    """The operation that makes a loss a mean over rows; None if something else divides it."""
    waiting, seen = [operation], {operation.name}
    while waiting:
        one = waiting.pop()
        if one.type == "Mean" and one.outputs[0].shape.rank == 0:
            return one
        before = [tensor.op for tensor in one.inputs] if one.type in _PASSED else []
        waiting += [source for source in before if source.name not in seen]
        seen |= {source.name for source in before}
    return None
