"""``ipu.ipu_multi_worker_strategy``: the strategy over TensorFlow's own collectives."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.strategies.multi_worker_strategy import (
    IPUMultiWorkerStrategy,
    MultiWorkerExtended,
)
from popdist_tf.strategies.variables import (
    IPUDistributedVariable,
    IPUMirroredVariable,
    IPUOnReadPolicy,
    IPUOnWritePolicy,
    IPUSyncOnReadVariable,
)

IPUMultiWorkerStrategyV1 = IPUMultiWorkerStrategy
IPUAutoPolicy = IPUOnWritePolicy  # variables that are reduced when written, until SDK 2.3
IPUMultiWorkerExtended = IPUMultiWorkerExtendedV1 = MultiWorkerExtended

__all__ = [
    "IPUAutoPolicy",
    "IPUDistributedVariable",
    "IPUMirroredVariable",
    "IPUMultiWorkerExtended",
    "IPUMultiWorkerExtendedV1",
    "IPUMultiWorkerStrategy",
    "IPUMultiWorkerStrategyV1",
    "IPUOnReadPolicy",
    "IPUOnWritePolicy",
    "IPUSyncOnReadVariable",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
