"""``ipu.ipu_outfeed_queue``: what a loop says of its iterations."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.queues import IPUOutfeedMode, IPUOutfeedQueue

__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
