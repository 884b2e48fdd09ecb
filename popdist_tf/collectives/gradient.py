"""Gradients of collectives, which are collectives with names and gates of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import ops

if TYPE_CHECKING:
    from collections.abc import Callable


def with_gradient(
    function: Callable[[Any], Any], gradient: Callable[[Any], Any], source: Any
) -> Any:
    """Calls a function of a tensor, and says what its gradient is.

    Args:
        function: What is called.
        gradient: From the gradient of the result to that of ``source``.
        source: The tensor.

    Returns:
        What ``function`` returned.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None or graph.building_function:

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def called(tensor: Any) -> tuple[Any, Callable[[Any], Any]]:
            return function(tensor), gradient

        return called(source)
    # In a graph of TensorFlow 1, `tf.custom_gradient` looks for the variables that the tensor
    # depends on, and fails where one belongs to a second local replica.
    name = f"PopdistCollective{ops.uid()}"

    @tf.RegisterGradient(name)  # type: ignore[untyped-decorator]
    def _backward(op: Any, upstream: Any, _: Any) -> tuple[None, Any]:
        del op
        return None, gradient(upstream)

    with graph.gradient_override_map({"IdentityN": name}):
        return tf.raw_ops.IdentityN(input=[function(source), source])[0]
