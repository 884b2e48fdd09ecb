"""``ipu.cross_replica_ops``: the same as ``ipu.ops.cross_replica_ops``."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.operations import (
    assume_equal_across_replicas,
    cross_replica_mean,
    cross_replica_sum,
)

__all__ = ["assume_equal_across_replicas", "cross_replica_mean", "cross_replica_sum"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
