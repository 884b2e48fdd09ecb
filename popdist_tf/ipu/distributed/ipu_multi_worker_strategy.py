"""``ipu.distributed.ipu_multi_worker_strategy``: where SDK 3 has the strategy over gRPC."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.ipu.ipu_multi_worker_strategy import (
    IPUMultiWorkerExtended,
    IPUMultiWorkerExtendedV1,
    IPUMultiWorkerStrategy,
    IPUMultiWorkerStrategyV1,
)

__all__ = [
    "IPUMultiWorkerExtended",
    "IPUMultiWorkerExtendedV1",
    "IPUMultiWorkerStrategy",
    "IPUMultiWorkerStrategyV1",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
