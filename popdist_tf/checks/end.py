"""The comparison of weights when a program ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist.checks.trained import Trained, is_several
from popdist_tf.versions import tensorflow_variable, variable_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MARK = "_popdist_end"


def compare_at_end(optimizer: Any, variables: Sequence[Any]) -> None:
    """Has the launcher compare what an optimizer updates, when all programs have ended.

    Args:
        optimizer: An optimizer of Keras; what it updates is known as long as it exists.
        variables: The variables that it updates.
    """
    if _MARK in vars(optimizer) or not is_several():
        return
    held = list(variables)

    def weights() -> Iterator[tuple[str, Any]]:
        return ((variable_name(one), tensorflow_variable(one)) for one in held)

    trained = vars(optimizer)[_MARK] = Trained(type(optimizer).__name__, weights, _read)
    trained.claim()


def _read(variable: Any) -> Any:
    # The optimizer may be deleted at any time, also while a function is built. A tape, or
    # `tf.custom_gradient`, would take a variable's own read for one of the function.
    with tf.init_scope():
        first = getattr(variable, "values", (variable,))[0]
        return tf.raw_ops.ReadVariableOp(resource=first.handle, dtype=first.dtype).numpy()
