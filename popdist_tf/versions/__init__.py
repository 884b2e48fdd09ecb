"""What differs between the versions of Keras that TensorFlow comes with: 2.15, and 3.

`keras2` and `keras3` have the same names. Here are those of the Keras that is there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

if TYPE_CHECKING:
    from collections.abc import Iterable

_COUNT = re.compile(r"_\d+(?=_|$)")


def keras_is_3() -> bool:
    """Whether ``tf.keras`` is Keras 3.

    Returns:
        False for Keras 2, which TensorFlow had up to 2.15 (and has with ``TF_USE_LEGACY_KERAS``).
    """
    # By what it can do: not all of these modules state a version.
    return hasattr(tf.keras.optimizers.Optimizer, "apply")


if keras_is_3():
    from popdist_tf.versions.keras3 import (
        LOSSES,
        NODES,
        UPDATE_METHOD,
        before_first_batch,
        build_optimizer,
        calls_of_function,
        clip_sums_where,
        correct_epoch_steps,
        gradients_and_variables,
        input_shapes,
        optimizer_kinds,
        strategy_of,
        support_backups,
        support_loss_scaling,
        tensorflow_variable,
    )
else:
    from popdist_tf.versions.keras2 import (
        LOSSES,
        NODES,
        UPDATE_METHOD,
        before_first_batch,
        build_optimizer,
        calls_of_function,
        clip_sums_where,
        correct_epoch_steps,
        gradients_and_variables,
        input_shapes,
        optimizer_kinds,
        strategy_of,
        support_backups,
        support_loss_scaling,
        tensorflow_variable,
    )

__all__ = [
    "LOSSES",
    "NODES",
    "UPDATE_METHOD",
    "before_first_batch",
    "build_optimizer",
    "calls_of_function",
    "clip_sums_where",
    "correct_epoch_steps",
    "describe",
    "gradients_and_variables",
    "input_shapes",
    "is_legacy",
    "keras_is_3",
    "optimizer_kinds",
    "optimizer_variables",
    "strategy_of",
    "support_backups",
    "support_loss_scaling",
    "tensorflow_variable",
    "update_arguments",
    "variable_name",
]


def is_legacy(optimizer: Any) -> bool:
    """Whether an optimizer is of the kind that Keras had until 2.10.

    Args:
        optimizer: An optimizer of Keras.
    """
    return isinstance(optimizer, optimizer_kinds()[1:])


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The slots and counters of an optimizer.

    Args:
        optimizer: An optimizer of Keras.
    """
    held = optimizer.variables
    return list(held() if callable(held) and not isinstance(held, (list, tuple)) else held)


def variable_name(variable: Any) -> str:
    """What a variable is called, with its layer.

    Args:
        variable: A variable of Keras 3, or of TensorFlow.

    Returns:
        Its name.
    """
    # A distributed variable is read, if it is asked for an attribute that it lacks.
    is_plain = isinstance(variable, tf.Variable)
    return str(variable.name if is_plain else getattr(variable, "path", variable.name))


def describe(variables: Iterable[Any]) -> str:
    """Variables in words, the same on every instance.

    Numbers that Keras counts up in names (``dense_1``) differ as soon as one instance builds a
    model more than the others, and are left out.

    Args:
        variables: Variables of Keras or of TensorFlow.

    Returns:
        The last part of each name, and the shape.
    """
    names = (
        (_COUNT.sub("", variable_name(one).split("/")[-1]), tuple(one.shape)) for one in variables
    )
    return ", ".join(f"{name}{shape}" for name, shape in names)


def update_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What an optimizer's update takes first, by position or by name, and its further arguments."""
    if args:
        return args[0], args[1:], kwargs
    named = {"grads_and_vars", "grads"} & {*kwargs}
    return kwargs[min(named)], (), {k: value for k, value in kwargs.items() if k not in named}
