"""``ipu.keras``: the published layers."""

from popdist_tf.ipu.keras import layers

__all__ = ["layers"]
