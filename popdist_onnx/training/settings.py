"""Checks the settings of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist.nearest import did_you_mean
from popdist_onnx.errors import ArgumentError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from popdist_onnx.optimizers.optimizer import Optimizer

_USUAL = {"lr": "learning_rate", "validation_split": "validation", "verbose": "progress"}
"""Settings of other libraries, and the names that they have here."""


def require_known(known: Sequence[str], given: Iterable[str]) -> None:
    """Refuses settings that do not exist, and names the nearest one that does."""
    for name in given:
        if name not in known:
            raise ArgumentError(
                "PD579",
                f"there is no setting {name}",
                accepted=", ".join(known),
                hint=did_you_mean(_USUAL.get(name, name), known),
            )


def require_positive(**numbers: object) -> None:
    """Checks that counts are positive.

    Raises:
        ValueRangeError: A count is not a positive integer.
    """
    _require_whole(numbers, 1, "a positive whole number")


def require_seed(seed: object) -> None:
    """Checks that a seed is one.

    Raises:
        ValueRangeError: It is not an integer of 0 or more.
    """
    _require_whole({"seed": seed}, 0, "a whole number")


def _require_whole(numbers: Mapping[str, object], least: int, kind: str) -> None:
    for name, number in numbers.items():
        is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not (is_whole and int(number) >= least):  # type: ignore[call-overload]
            raise ValueRangeError(
                "PD579", f"{name} is {kind}", value=number, accepted=f"{least} or more"
            )


def require_flag(**flags: object) -> None:
    """Checks that settings are true or false: the text "no" would count as true.

    Raises:
        ArgumentError: A setting is something else.
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise ArgumentError(
                "PD579", f"{name} is true or false", value=value, accepted="True or False"
            )


def require_schedule(schedule: object) -> None:
    """Checks that a schedule can be called.

    Raises:
        ArgumentError: It is something else.
    """
    if schedule is not None and not callable(schedule):
        raise ArgumentError(
            "PD583",
            "a schedule is a function from the number of an update to a learning rate",
            value=schedule,
            hint="schedule=lambda update: 0.1 * 0.99**update",
        )


def clipped(optimizer: Optimizer, norm: float | None) -> Optimizer:
    """An optimizer that clips gradients to a norm; the same one without a norm.

    Raises:
        ArgumentError: The optimizer clips them already.
    """
    if norm is None:
        return optimizer
    if optimizer.getClipNormSettings():
        raise ArgumentError(
            "PD583",
            "the optimizer object clips gradients already",
            value=f"clip_norm={norm}",
            hint="leave clip_norm out",
        )
    return optimizer.with_clipped_norm(norm)
