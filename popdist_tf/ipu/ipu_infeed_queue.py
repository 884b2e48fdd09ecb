"""``ipu.ipu_infeed_queue``: a data set as a loop's source."""

from popdist_tf.loops.infeed import IPUInfeedQueue, IPUIterator

__all__ = ["IPUInfeedQueue", "IPUIterator"]
