"""``ipu.ops.normalization_ops``: normalisation over groups of channels."""

from popdist_tf.loops.normalization import group_norm, instance_norm, layer_norm

__all__ = ["group_norm", "instance_norm", "layer_norm"]
