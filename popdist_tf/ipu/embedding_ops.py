"""``ipu.embedding_ops``: the same as ``ipu.ops.embedding_ops``."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.operations import embedding_lookup

__all__ = ["embedding_lookup"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
