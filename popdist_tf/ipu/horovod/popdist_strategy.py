"""``ipu.horovod.popdist_strategy``: the strategy for PopDist jobs (SDK 2.4 to 2.6)."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.strategies.extended import HorovodExtended
from popdist_tf.strategies.popdist_strategy import PopDistStrategy

PopDistStrategyV1 = PopDistStrategy
PopDistExtended = PopDistExtendedV1 = HorovodExtended

__all__ = ["PopDistExtended", "PopDistExtendedV1", "PopDistStrategy", "PopDistStrategyV1"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
