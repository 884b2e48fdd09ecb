"""`ipu_compiler.compile`: calling a function as one computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.strategies.placement import device_code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def compile(  # noqa: A001 - published name
    computation: Callable[..., Any], inputs: Sequence[Any] | None = None
) -> Any:
    """Builds a computation from a function.

    Args:
        computation: Called once with the inputs; returns tensors, operations, or nothing.
        inputs: What it is called with.

    Returns:
        The tensors as a list, where there is one as well as where there are several; an operation
        where there are none. Operations that ``computation`` returned run with any of the tensors.

    Raises:
        TypeError: ``inputs`` is no list or tuple.
    """
    if inputs is not None and not isinstance(inputs, (list, tuple)):
        raise TypeError(f"ipu_compiler.compile needs a list of inputs: {inputs!r}")
    with device_code():
        outputs = computation(*(tf.nest.map_structure(tf.convert_to_tensor, list(inputs or []))))
    flat = [] if outputs is None else _flat(outputs)
    operations = [output for output in flat if isinstance(output, tf.Operation)]
    tensors = [output for output in flat if not isinstance(output, tf.Operation)]
    with tf.control_dependencies(operations):
        if not tensors:
            return tf.group(*operations)
        return [tf.identity(tensor) for tensor in tensors]


def _flat(outputs: Any) -> list[Any]:
    return [output for output in tf.nest.flatten(outputs) if output is not None]
