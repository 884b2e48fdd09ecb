"""``ipu.loops``: bodies that run several times in one call."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.repeat import repeat, while_loop

__all__ = ["repeat", "while_loop"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
