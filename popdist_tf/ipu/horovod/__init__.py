"""``ipu.horovod``: Horovod's basics and collectives for TensorFlow programs."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.collectives.instances import (
    Adasum,
    Average,
    Sum,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    shutdown,
    size,
)
from popdist_tf.collectives.published import allgather, allreduce, broadcast
from popdist_tf.ipu.horovod import (
    ipu_horovod_strategy,
    ipu_multi_replica_strategy,
    popdist_strategy,
)

__all__ = [
    "Adasum",
    "Average",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "ipu_horovod_strategy",
    "ipu_multi_replica_strategy",
    "is_homogeneous",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "popdist_strategy",
    "rank",
    "shutdown",
    "size",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
