"""``ipu.ops.functional_ops``: functions of device code."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.operations import outlined_function

__all__ = ["outlined_function"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
