"""Keeping TensorFlow's optimiser and scheduler from moving collectives.

Horovod registers its ops as stateless, from which TensorFlow draws three wrong conclusions:

* One whose input is constant may run while the graph is optimised, instead of when it is its turn.
  Ranks with different constants then wait for different operations, forever.
* One whose result is not used may be left out, on the rank where it is not used.
* One in a loop need not have ended before the next iteration starts it again under the same name,
  which Horovod refuses.

An op that passes its value on and counts as stateful, in front of a collective and behind it, stops
all three. It is excepted from the order in which TensorFlow runs stateful ops, so that gradients
still travel as soon as they exist.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def gated(value: Any) -> Any:
    """Passes a tensor on through an op that TensorFlow neither folds, prunes nor repeats early.

    Args:
        value: A tensor.

    Returns:
        The same value. In eager code, where nothing is moved, the tensor itself.
    """
    if tf.executing_eagerly():
        return value
    gate = tf.raw_ops.GuaranteeConst(input=value)
    dependencies = getattr(gate.graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(gate.op)
    return gate
