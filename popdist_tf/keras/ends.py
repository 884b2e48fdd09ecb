"""Epochs of unknown length: do all instances make as many steps?

A known number of steps is compared before the first one. Where it is unknown (generators, filters),
an instance that runs out of data early would leave the others waiting in their next reduction. So
there every step is announced before its gradients travel, in a number that is summed over the
instances, and so is the end of the epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives

_NAME = "popdist_steps_of_epoch"
_MESSAGE = (
    "[PD413] the instances have different numbers of batches: at least one of them has no more "
    "data and others have. Give all instances as many, by dataset.take(n) or steps_per_epoch. "
    "Instances that still have data, and all instances:"
)


class AnnouncedSteps:
    """Tells the other instances of each step, and of the end of an epoch, where they must know.

    Args:
        collectives: The job's collectives.
    """

    def __init__(self, collectives: HostCollectives) -> None:
        self._collectives = collectives
        self._is_wanted: tf.Variable | None = None
        # A function, because Horovod would not find the call of an eager program by its name.
        self._announce = tf.function(self._sum)

    def want(self, is_wanted: bool) -> None:
        """Says whether the steps of this training are to be announced.

        Args:
            is_wanted: The same on every instance.
        """
        self._switch().assign(is_wanted)

    def before_reduction(self, gradient: Any) -> Any:
        """Announces a step, where that is wanted.

        Args:
            gradient: One that is about to travel. A step that finds no more data begins as well,
                and what does not depend on the data runs in it.

        Returns:
            A boolean scalar, to be waited for.
        """
        first = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        with tf.control_dependencies([first]):
            return tf.cond(self._switch(), lambda: self._announce(has_batch=True), lambda: True)

    def end_of_epoch(self) -> None:
        """Announces the end of an epoch, where that is wanted.

        Raises:
            InvalidArgumentError: Other instances have another batch; raised there too.
        """
        if self._switch().numpy():
            self._announce(has_batch=False)

    def _switch(self) -> tf.Variable:
        if self._is_wanted is None:
            with tf.init_scope():
                self._is_wanted = tf.Variable(initial_value=False, trainable=False)
        return self._is_wanted

    def _sum(self, has_batch: bool) -> Any:
        holders = self._collectives.sum_by_name(tf.constant(int(has_batch)), _NAME)
        equal = (holders == 0) | (holders == self._collectives.size)
        check = tf.debugging.Assert(equal, [_MESSAGE, holders, self._collectives.size])
        with tf.control_dependencies([check]):
            return tf.identity(equal)
