"""``ipu.ipu_multi_worker_strategy``: the strategy over TensorFlow's own collectives."""

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
IPUMultiWorkerExtended = IPUMultiWorkerExtendedV1 = MultiWorkerExtended

__all__ = [
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
