"""``ipu.ipu_outfeed_queue``: what a loop says of its iterations."""

from popdist_tf.loops.outfeed import IPUOutfeedMode, IPUOutfeedQueue

__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue"]
