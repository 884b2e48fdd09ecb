"""``ipu.distributed``: strategies and host collectives, where SDK 3 has them."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.collectives.instances import (
    Adasum,
    Average,
    Sum,
    init,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from popdist_tf.ipu.distributed import (
    host_collective_ops,
    ipu_horovod_strategy,
    ipu_multi_worker_strategy,
    popdist_strategy,
)
from popdist_tf.ipu.distributed.host_collective_ops import allgather, allreduce, broadcast
from popdist_tf.strategies.multi_worker_strategy import IPUMultiWorkerStrategy
from popdist_tf.strategies.popdist_strategy import IPUHorovodStrategy, PopDistStrategy

__all__ = [
    "Adasum",
    "Average",
    "IPUHorovodStrategy",
    "IPUMultiWorkerStrategy",
    "PopDistStrategy",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "host_collective_ops",
    "init",
    "ipu_horovod_strategy",
    "ipu_multi_worker_strategy",
    "local_rank",
    "local_size",
    "popdist_strategy",
    "rank",
    "shutdown",
    "size",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
