"""``ipu.ipu_infeed_queue``: a data set as a loop's source."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.queues import IPUInfeedQueue, IPUIterator

__all__ = ["IPUInfeedQueue", "IPUIterator"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
