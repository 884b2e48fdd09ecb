"""``ipu.keras``: the published layers."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.ipu.keras import layers

__all__ = ["layers"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
