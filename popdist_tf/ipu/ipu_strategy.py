"""``ipu.ipu_strategy``: the strategy for one instance."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.strategies.popdist_strategy import IPUStrategy

IPUStrategyV1 = IPUStrategy

__all__ = ["IPUStrategy", "IPUStrategyV1"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
