"""``ipu.ipu_strategy``: the strategy for one instance."""

from popdist_tf.strategies.single import IPUStrategy

IPUStrategyV1 = IPUStrategy

__all__ = ["IPUStrategy", "IPUStrategyV1"]
