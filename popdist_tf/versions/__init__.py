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
        LOSSES as LOSSES,
    )
    from popdist_tf.versions.keras3 import (
        NODES as NODES,
    )
    from popdist_tf.versions.keras3 import (
        UPDATE_METHOD as UPDATE_METHOD,
    )
    from popdist_tf.versions.keras3 import (
        before_first_batch as before_first_batch,
    )
    from popdist_tf.versions.keras3 import (
        build_optimizer as build_optimizer,
    )
    from popdist_tf.versions.keras3 import (
        calls_of_function as calls_of_function,
    )
    from popdist_tf.versions.keras3 import (
        clip_sums_where as clip_sums_where,
    )
    from popdist_tf.versions.keras3 import (
        correct_epoch_steps as correct_epoch_steps,
    )
    from popdist_tf.versions.keras3 import (
        gradients_and_variables as gradients_and_variables,
    )
    from popdist_tf.versions.keras3 import (
        input_shapes as input_shapes,
    )
    from popdist_tf.versions.keras3 import (
        optimizer_kinds as optimizer_kinds,
    )
    from popdist_tf.versions.keras3 import (
        strategy_of as strategy_of,
    )
    from popdist_tf.versions.keras3 import (
        support_backups as support_backups,
    )
    from popdist_tf.versions.keras3 import (
        support_loss_scaling as support_loss_scaling,
    )
    from popdist_tf.versions.keras3 import (
        tensorflow_variable as tensorflow_variable,
    )
else:
    from popdist_tf.versions.keras2 import (
        LOSSES as LOSSES,
    )
    from popdist_tf.versions.keras2 import (
        NODES as NODES,
    )
    from popdist_tf.versions.keras2 import (
        UPDATE_METHOD as UPDATE_METHOD,
    )
    from popdist_tf.versions.keras2 import (
        before_first_batch as before_first_batch,
    )
    from popdist_tf.versions.keras2 import (
        build_optimizer as build_optimizer,
    )
    from popdist_tf.versions.keras2 import (
        calls_of_function as calls_of_function,
    )
    from popdist_tf.versions.keras2 import (
        clip_sums_where as clip_sums_where,
    )
    from popdist_tf.versions.keras2 import (
        correct_epoch_steps as correct_epoch_steps,
    )
    from popdist_tf.versions.keras2 import (
        gradients_and_variables as gradients_and_variables,
    )
    from popdist_tf.versions.keras2 import (
        input_shapes as input_shapes,
    )
    from popdist_tf.versions.keras2 import (
        optimizer_kinds as optimizer_kinds,
    )
    from popdist_tf.versions.keras2 import (
        strategy_of as strategy_of,
    )
    from popdist_tf.versions.keras2 import (
        support_backups as support_backups,
    )
    from popdist_tf.versions.keras2 import (
        support_loss_scaling as support_loss_scaling,
    )
    from popdist_tf.versions.keras2 import (
        tensorflow_variable as tensorflow_variable,
    )


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
