"""The comparison of weights when a program ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist.trained import Trained, is_several
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
        for variable in map(tensorflow_variable, held):
            yield variable_name(variable), getattr(variable, "values", (variable,))[0].numpy()

    vars(optimizer)[_MARK] = Trained(type(optimizer).__name__, weights)
