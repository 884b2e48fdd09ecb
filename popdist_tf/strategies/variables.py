"""The published variable classes, and where a variable's first value comes from."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils, values
from tensorflow.python.trackable import base as trackable


class IPUDistributedVariable(values.DistributedVariable):  # type: ignore[misc]
    """A variable with one component for each local replica."""


class IPUMirroredVariable(values.MirroredVariable):  # type: ignore[misc]
    """A variable that is kept equal on all replicas of all instances (ON_WRITE)."""


class IPUSyncOnReadVariable(values.SyncOnReadVariable):  # type: ignore[misc]
    """A variable that each replica writes alone, reduced over all replicas when read (ON_READ)."""


class IPUOnWritePolicy(values.OnWritePolicy):  # type: ignore[misc]
    """The policy of variables that are kept equal."""


class IPUOnReadPolicy(values.OnReadPolicy):  # type: ignore[misc]
    """The policy of variables that are reduced when read."""


def _by_synchronization(mapping: dict[Any, Any], ours: dict[str, Any]) -> dict[Any, Any]:
    return {key: ours[value.__name__] for key, value in mapping.items()}


CLASSES = _by_synchronization(
    distribute_utils.VARIABLE_CLASS_MAPPING,
    {
        "DistributedVariable": IPUDistributedVariable,
        "MirroredVariable": IPUMirroredVariable,
        "SyncOnReadVariable": IPUSyncOnReadVariable,
    },
)
POLICIES = _by_synchronization(
    distribute_utils.VARIABLE_POLICY_MAPPING,
    {"OnWritePolicy": IPUOnWritePolicy, "OnReadPolicy": IPUOnReadPolicy},
)


def evaluate_initial_value(initial_value: Any, dtype: Any) -> Any:
    """The tensor that a variable is to start from.

    Args:
        initial_value: A tensor, something that converts to one, a callable that returns one, or a
            value that waits for its checkpoint.
        dtype: The variable's dtype, or None for the value's own.

    Returns:
        A tensor.
    """
    value = initial_value() if callable(initial_value) else initial_value
    if isinstance(value, trackable.CheckpointInitialValue):
        value = value.wrapped_value
    return tf.convert_to_tensor(value, dtype=dtype)
