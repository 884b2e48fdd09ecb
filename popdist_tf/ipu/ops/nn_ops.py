"""``ipu.ops.nn_ops``: activations."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.operations import gelu, softmax

__all__ = ["gelu", "softmax"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
