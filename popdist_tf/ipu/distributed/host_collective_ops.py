"""``ipu.distributed.host_collective_ops``: collectives among the instances of a PopDist job."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.collectives.instances import allgather, allreduce, broadcast

__all__ = ["allgather", "allreduce", "broadcast"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
