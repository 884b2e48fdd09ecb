"""Random numbers of replicas: each its own, from a seed that all instances may set alike.

TensorFlow derives the numbers of an operation from a seed of the program and one of the operation.
Instances run the same program. With equal seeds, as `tf.keras.utils.set_random_seed` makes them,
dropout would leave out the same units on all of them, and augmentation would turn all images alike.
The replicas of the original hardware each have a generator of their own.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed

from popdist_tf.collectives.instances import place_in_job
from popdist_tf.patches import surround

_IDENTICAL = "_popdist_identical_replicas"  # kept where TensorFlow keeps the program's seed
_SEEDS_APART = 1_000_003
_SEEDS = 2**31 - 1


def separate_random_numbers() -> None:
    """Makes seeded operations of replicas draw numbers of their own; safe to call again.

    The first replica's numbers, those of initial values and those outside of replicas stay as they
    are.
    """

    def get_seed(known: Any, op_seed: int | None) -> tuple[int | None, int | None]:
        first, second = known(op_seed)
        if first is None:
            return first, second
        return (first + _replica() * _SEEDS_APART) % _SEEDS, second

    surround(random_seed, "get_seed", "replicas", get_seed)


def _replica() -> int:
    """The number of the replica whose code is built or run, among all; 0 outside of replicas."""
    if not tf.distribute.has_strategy() or getattr(context.context(), _IDENTICAL, False):
        return 0
    replica = tf.distribute.get_replica_context()
    separates = replica is not None and hasattr(replica.strategy, "_separates_random_numbers")
    return int(replica._replica_id_in_sync_group) if separates else 0


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> Any:
    """Sets the seed of random numbers.

    Args:
        seed: The seed of every random operation that is built or called from now on. Each instance
            derives its own seed from it, so that dropout differs between instances; the first
            instance uses the seed itself.
        device: Accepted as published.
        cpu_device: Accepted as published.
        experimental_identical_replicas: Whether all instances and replicas use the seed unchanged.

    Returns:
        An operation without effect, in graph mode, where programs run it; None otherwise.
    """
    del device, cpu_device
    setattr(context.context(), _IDENTICAL, experimental_identical_replicas)
    instance = 0 if experimental_identical_replicas else place_in_job()[1]
    tf.random.set_seed(seed + instance * _SEEDS_APART)
    return None if tf.executing_eagerly() else tf.no_op()
