"""``ipu.normalization_ops``: the same as ``ipu.ops.normalization_ops``."""

from popdist_tf.loops.normalization import group_norm, instance_norm, layer_norm

__all__ = ["group_norm", "instance_norm", "layer_norm"]
