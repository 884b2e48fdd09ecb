"""XLA compiles no communication between processes."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from popdist_tf.errors import CollectiveError


def refuse_xla(kind: str) -> None:
    """Refuses to build a collective into a function that XLA is to compile.

    TensorFlow would find out much later, and say that a kernel is missing.

    Args:
        kind: What the collective does, for the message.

    Raises:
        CollectiveError: The function that is being built has ``jit_compile=True``.
    """
    if tf.executing_eagerly():
        return
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise CollectiveError(
            "PD410",
            f"XLA cannot compile a function that communicates with other instances ({kind})",
            value="jit_compile=True",
            accepted="jit_compile=False around strategy.run, reductions and training steps",
            hint="leave jit_compile away from compile() or tf.function; functions inside that only "
            "compute may have it",
        )
