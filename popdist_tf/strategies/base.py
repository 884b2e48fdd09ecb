"""What all strategies share at their surface."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib


class HostStrategy(distribute_lib.StrategyV1):  # type: ignore[misc]
    """A strategy whose workers talk over the host network.

    It offers what both TensorFlow 1 programs (`experimental_run_v2`) and current ones (`gather`)
    call.
    """

    _collective_key_base = 0  # published; TensorFlow's mirrored strategies read it

    def experimental_run_v2(self, fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs a function on every replica: the name that TensorFlow 1 had for `run`."""
        return self.run(fn, args=args, kwargs=kwargs)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates the replicas' values along an axis, in the order of replica ids.

        Args:
            value: One value for each replica, with at least one dimension.
            axis: The dimension to concatenate along.

        Returns:
            The concatenation, the same on every instance.
        """
        return tf.distribute.Strategy.gather(self, value, axis)
