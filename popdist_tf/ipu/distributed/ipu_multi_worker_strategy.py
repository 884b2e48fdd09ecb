"""``ipu.distributed.ipu_multi_worker_strategy``: where SDK 3 has the strategy over gRPC."""

from popdist_tf.ipu.ipu_multi_worker_strategy import (
    IPUMultiWorkerExtended,
    IPUMultiWorkerStrategy,
    IPUMultiWorkerStrategyV1,
)

__all__ = ["IPUMultiWorkerExtended", "IPUMultiWorkerStrategy", "IPUMultiWorkerStrategyV1"]
