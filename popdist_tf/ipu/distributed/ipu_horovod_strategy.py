"""``ipu.distributed.ipu_horovod_strategy``: the strategy for any Horovod job."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.strategies.extended import HorovodExtended
from popdist_tf.strategies.popdist_strategy import IPUHorovodStrategy

IPUHorovodStrategyV1 = IPUHorovodStrategy
IPUHorovodExtended = IPUHorovodExtendedV1 = HorovodExtended

__all__ = [
    "IPUHorovodExtended",
    "IPUHorovodExtendedV1",
    "IPUHorovodStrategy",
    "IPUHorovodStrategyV1",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
