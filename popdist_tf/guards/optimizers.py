"""The optimizers of a Keras model, and how they are known to reduce."""

from __future__ import annotations

from typing import Any

from popdist_tf.versions import optimizer_kinds

REDUCTION = "_popdist_reduction"
"""An attribute of optimizers that `popdist_tf.keras` has wrapped; it has the job's collectives."""


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers that a program has set as attributes of a model, or else that of ``compile``.

    Args:
        model: A model of Keras. Its ``train_step`` may update by optimizers of its own; that of
            ``compile`` is then Keras' default, which updates nothing.
    """
    compiled = getattr(model, "optimizer", None)
    held = [compiled]
    for value in vars(model).values():
        is_dict = isinstance(value, dict)
        held += (
            value.values() if is_dict else value if isinstance(value, (list, tuple)) else [value]
        )
    known = {id(one): one for one in held if isinstance(one, optimizer_kinds())}
    if len(known) > 1:
        known.pop(id(compiled), None)
    return list(known.values())


def reduction_of(model: Any) -> Any:
    """The reduction of a model's wrapped optimizer; None where no optimizer is wrapped.

    Args:
        model: A model of Keras.
    """
    found = (getattr(one, REDUCTION, None) for one in optimizers_of(model))
    return next((one for one in found if one is not None), None)
