"""``ipu.ops``: operations of device code."""

from popdist_tf.ipu.ops import cross_replica_ops, normalization_ops, pipelining_ops

__all__ = ["cross_replica_ops", "normalization_ops", "pipelining_ops"]
