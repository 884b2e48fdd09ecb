"""``ipu.horovod.ipu_multi_replica_strategy``: `PopDistStrategy` in SDK 2.3."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.strategies.extended import HorovodExtended
from popdist_tf.strategies.popdist_strategy import PopDistStrategy

IPUMultiReplicaStrategy = IPUMultiReplicaStrategyV1 = PopDistStrategy
IPUMultiReplicaExtended = IPUMultiReplicaExtendedV1 = HorovodExtended

__all__ = [
    "IPUMultiReplicaExtended",
    "IPUMultiReplicaExtendedV1",
    "IPUMultiReplicaStrategy",
    "IPUMultiReplicaStrategyV1",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
