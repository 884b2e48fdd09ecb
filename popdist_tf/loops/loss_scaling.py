"""Automatic loss scaling: a factor of the loss that follows the size of the gradients.

Small float16 gradients of a scaled loss do not become zero. The factor grows while gradients are
small, and shrinks when too many of them are large. Gradients are divided by the factor before they
are used, so weights depend on it by rounding alone. All replicas count their gradients together,
and so have the same factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from popdist_tf.errors import OptimizerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BIN_EDGE = 2.0**13
"""From which magnitude on a gradient counts as large, where the program says nothing else."""

_FACTOR, _STEPS, _LARGE, _ALL, _LARGE_BEFORE, _ALL_BEFORE = range(6)


class LossScale:
    """The factor of one optimizer, and how it changes.

    Args:
        initial_loss_scaling_factor: The factor of the first step.
        update_frequency: After how many steps the factor changes.
        increment_factor: What the factor is multiplied with, or divided by.
        max_loss_scaling_factor: The factor grows up to this.
        accumulate_statistics_over_update_period: Whether the gradients of all steps since the last
            change count; otherwise those of the last step.
        ratio_threshold: The factor shrinks where more than this part of the gradients are large.
        captured_grads_only: False: the gradients of all variables are counted.
        lpf_alpha: What part of the earlier counts is kept: ``n = alpha n + (1 - alpha) new``.
        histogram_bin_edge: From which magnitude on a gradient is large; None for `BIN_EDGE`.

    Raises:
        OptimizerError: An argument is out of its range.
    """

    def __init__(
        self,
        initial_loss_scaling_factor: float = 1.0,
        update_frequency: int = 8,
        increment_factor: float = 2.0,
        max_loss_scaling_factor: float = 32768.0,
        accumulate_statistics_over_update_period: bool = True,
        ratio_threshold: float = 10e-6,
        captured_grads_only: bool = False,
        lpf_alpha: float = 0.0,
        histogram_bin_edge: float | None = None,
    ) -> None:
        edge = BIN_EDGE if histogram_bin_edge is None else histogram_bin_edge
        for name, value, is_right, accepted in (
            ("initial_loss_scaling_factor", initial_loss_scaling_factor,
             0 < initial_loss_scaling_factor <= max_loss_scaling_factor, "up to the maximum"),
            ("update_frequency", update_frequency, update_frequency >= 1, "at least 1"),
            ("increment_factor", increment_factor, increment_factor > 1, "more than 1"),
            ("ratio_threshold", ratio_threshold, 0 <= ratio_threshold < 1, "0 to 1"),
            ("lpf_alpha", lpf_alpha, 0 <= lpf_alpha < 1, "0 to 1"),
            ("histogram_bin_edge", edge, edge > 0, "more than 0"),
            ("captured_grads_only", captured_grads_only, not captured_grads_only,
             "False: the gradients of variables are counted"),
        ):  # fmt: skip
            if not is_right:
                raise OptimizerError(
                    "PD435", f"{name} of automatic loss scaling", value=value, accepted=accepted
                )
        self._initial = float(initial_loss_scaling_factor)
        self._frequency = update_frequency
        self._increment = increment_factor
        self._maximum = max_loss_scaling_factor
        self._accumulates = accumulate_statistics_over_update_period
        self._threshold = ratio_threshold
        self._alpha = lpf_alpha
        self._edge = edge
        self._states: dict[Any, Any] = {}

    @property
    def factor(self) -> Any:
        """The factor now, a float32 scalar."""
        return tf.cast(self._state().read_value()[_FACTOR], tf.float32)

    def scaled(self, loss: Any) -> Any:
        """A loss, or a function that returns one, times the factor."""
        if callable(loss):
            return lambda: self.scaled(loss())
        return loss * tf.cast(self.factor, loss.dtype)

    def unscaled(self, gradients: Sequence[Any], total: Callable[[Any], Any] | None = None) -> Any:
        """Divides the gradients of a scaled loss by the factor, and counts them.

        Args:
            gradients: Of this replica; None where a variable has none.
            total: Sums over the replicas, where the current strategy does not.

        Returns:
            The gradients. All are zero, on all replicas, if one of them is infinite or no number.
        """
        state = self._state()
        factor = state.read_value()[_FACTOR]
        held = [_values(one) for one in gradients if one is not None]
        is_large = [~(tf.abs(one) <= tf.cast(self._edge, one.dtype)) for one in held]
        large, wrong = _count(is_large), _count([~tf.math.is_finite(one) for one in held])
        size = tf.add_n([tf.cast(tf.size(one), tf.float64) for one in held])
        found = (total or _over_replicas)(tf.stack([large, size, wrong]))
        with tf.control_dependencies([found, factor]):
            noted = state.assign(self._after(state.read_value(), found), read_value=False)
        with tf.control_dependencies([] if noted is None else [noted]):
            is_finite = tf.equal(found[2], 0)
            inverse = 1 / factor
        return [None if one is None else _times(one, inverse, is_finite) for one in gradients]

    def _after(self, state: Any, found: Any) -> Any:
        """The state after a step whose gradients were counted."""
        large = self._alpha * state[_LARGE_BEFORE] + (1 - self._alpha) * found[0]
        size = self._alpha * state[_ALL_BEFORE] + (1 - self._alpha) * found[1]
        all_large = state[_LARGE] + large if self._accumulates else large
        all_sizes = state[_ALL] + size if self._accumulates else size
        steps = state[_STEPS] + 1
        is_due = steps >= self._frequency
        factor = state[_FACTOR]
        grown = tf.minimum(factor * self._increment, self._maximum)
        changed = tf.where(all_large > self._threshold * all_sizes, factor / self._increment, grown)
        zero = tf.zeros_like(steps)
        return tf.stack(
            [
                tf.where(is_due, changed, factor),
                tf.where(is_due, zero, steps),
                tf.where(is_due, zero, all_large),
                tf.where(is_due, zero, all_sizes),
                large,
                size,
            ]
        )

    def _state(self) -> Any:
        replica = tf.distribute.get_replica_context()
        # Outside of replicas, the first one's: they are equal.
        number = next(iter(self._states), 0)
        if replica is not None and (tf.distribute.has_strategy() or not self._states):
            number = replica._replica_id_in_sync_group  # noqa: SLF001 - the number, not a tensor
        if number not in self._states:
            with tf.init_scope():
                # This variable belongs to one replica, so the strategy must not create it.
                self._states[number] = ResourceVariable(
                    tf.constant([self._initial, 0, 0, 0, 0, 0], tf.float64),
                    trainable=False,
                    name="loss_scaling",
                )
        return self._states[number]


def _over_replicas(counts: Any) -> Any:
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise OptimizerError(
            "PD435",
            "gradients of a replica are counted, and this code is not inside of a replica",
            hint="compute gradients inside of strategy.run",
        )
    strategy = replica.strategy
    if strategy.num_replicas_in_sync == 1:
        return counts
    if not hasattr(strategy.extended, "reduce_over_replicas"):
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, counts)
    # Not `all_reduce`: a graph of TensorFlow 1 with several local replicas does not support it.
    return replica.merge_call(_summed, args=(counts,))


def _summed(strategy: Any, counts: Any) -> Any:
    extended = strategy.extended
    before = dict(extended.collectives.built)
    total = extended.reduce_over_replicas(tf.distribute.ReduceOp.SUM, counts)
    # Gradients that nothing else reduces are still found by the step's guard.
    extended.collectives.built.clear()
    extended.collectives.built.update(before)
    return total


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _count(masks: Sequence[Any]) -> Any:
    return tf.add_n([tf.math.count_nonzero(one, dtype=tf.float64) for one in masks])


def _times(gradient: Any, factor: Any, is_finite: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = _times(gradient.values, factor, is_finite)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    changed = gradient * tf.cast(factor, gradient.dtype)
    return tf.where(is_finite, changed, tf.zeros_like(changed))
