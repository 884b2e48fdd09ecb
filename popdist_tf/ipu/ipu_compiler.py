"""``ipu.ipu_compiler``: calling a function as one computation."""

from popdist_tf.loops.compiler import compile  # noqa: A004 - published name

__all__ = ["compile"]
