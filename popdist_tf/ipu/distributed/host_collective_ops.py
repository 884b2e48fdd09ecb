"""``ipu.distributed.host_collective_ops``: collectives among the instances of a PopDist job."""

from popdist_tf.collectives.instances import allgather, allreduce, broadcast

__all__ = ["allgather", "allreduce", "broadcast"]
