"""``ipu.ops.replication_ops``: replicas."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.operations import replication_index

__all__ = ["replication_index"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
