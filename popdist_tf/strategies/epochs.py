"""How many steps an epoch has where an instance runs several replicas.

Every replica takes a batch of its own, so a step of an instance with R replicas takes R batches.
Keras counts the batches of a data set before the strategy sees it, would wait for R times as many
steps as there are, and then ends the training early with a warning. The correction applies under
our strategies alone; the original's Keras extensions do the same.
"""

from __future__ import annotations

import tensorflow as tf

from popdist_tf.versions import correct_epoch_steps


def count_replica_steps() -> None:
    """Makes Keras count the steps of an epoch per instance; safe to call again."""
    correct_epoch_steps(_per_instance)


def _per_instance(batches: int) -> int:
    replicas: int = getattr(tf.distribute.get_strategy().extended, "replicas_per_step", 1)
    return batches // replicas
