"""``ipu.ipu_compiler``: calling a function as one computation."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.repeat import compile  # noqa: A004 - published name

__all__ = ["compile"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
