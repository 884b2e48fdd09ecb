"""``ipu.loops``: bodies that run several times in one call."""

from popdist_tf.loops.repeat import repeat, while_loop

__all__ = ["repeat", "while_loop"]
