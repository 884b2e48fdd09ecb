"""Checks the settings of a training, and makes the optimizer that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from popdist.nearest import did_you_mean
from popdist_onnx.errors import ArgumentError, ValueRangeError
from popdist_onnx.optimizers.optimizer import Optimizer
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.types.enums import AdamMode, AdaptiveMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


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


# Optimizers by name, with the default values of torch.


class _Named(NamedTuple):
    """An optimizer under a name.

    Attributes:
        make: Makes the optimizer of all values.
        rate: The default learning rate.
        values: Further values, those of torch.
    """

    make: Callable[[Mapping[str, tuple[float, bool]]], Optimizer]
    rate: float
    values: Mapping[str, float] = {}


def _adam(mode: AdamMode) -> Callable[[Mapping[str, tuple[float, bool]]], Optimizer]:
    def make(values: Mapping[str, tuple[float, bool]]) -> Optimizer:
        from popdist_onnx.optimizers.adam import Adam

        return Adam(values, mode=mode)

    return make


def _adaptive(mode: AdaptiveMode) -> Callable[[Mapping[str, tuple[float, bool]]], Optimizer]:
    def make(values: Mapping[str, tuple[float, bool]]) -> Optimizer:
        from popdist_onnx.optimizers.adaptive import Adaptive

        return Adaptive(values, mode=mode)

    return make


_NAMED = {
    "sgd": _Named(SGD, 0.01),
    "momentum": _Named(SGD, 0.01, {"defaultMomentum": 0.9}),
    "adam": _Named(_adam(AdamMode.Adam), 1e-3, {"defaultEps": 1e-8}),
    "adamw": _Named(_adam(AdamMode.Adam), 1e-3, {"defaultEps": 1e-8, "defaultWeightDecay": 0.01}),
    "adamax": _Named(_adam(AdamMode.AdaMax), 2e-3, {"defaultEps": 1e-8}),
    "lamb": _Named(_adam(AdamMode.Lamb), 1e-3, {"defaultWeightDecay": 0.01}),
    "rmsprop": _Named(_adaptive(AdaptiveMode.RMSProp), 0.01, {"defaultEps": 1e-8}),
    "adagrad": _Named(_adaptive(AdaptiveMode.AdaGrad), 0.01, {"defaultEps": 1e-10}),
    "adadelta": _Named(_adaptive(AdaptiveMode.AdaDelta), 1.0, {"defaultAlpha": 0.9}),
}

NAMES = tuple(_NAMED)
"""The names."""

DEFAULT = "momentum"
"""What trains where the program names nothing."""


def optimizer_of(given: object = None, learning_rate: float | None = None) -> Optimizer:
    """An optimizer of a name or object; None gives SGD with momentum 0.9.

    Raises:
        ArgumentError: ``given`` is neither, or the learning rate was given twice.
        ValueRangeError: There is no optimizer of this name, or the learning rate is not positive.
    """
    if isinstance(given, Optimizer):
        if learning_rate is not None:
            raise ArgumentError(
                "PD579",
                "an optimizer object has its learning rate already",
                value=f"learning_rate={learning_rate}",
                hint="leave learning_rate out, or name the optimizer: optimizer='adam'",
            )
        return given
    name = DEFAULT if given is None else given
    if not isinstance(name, str):
        raise ArgumentError(
            "PD579",
            "this is not an optimizer",
            value=given,
            accepted=f"{', '.join(_NAMED)}, or an object such as popdist_onnx.Adam({{...}})",
        )
    if name.lower() not in _NAMED:
        raise ValueRangeError(
            "PD579",
            f"there is no optimizer '{name}'",
            accepted=", ".join(_NAMED),
            hint=did_you_mean(name.lower(), _NAMED, shown="'{}'"),
        )
    named = _NAMED[name.lower()]
    rate: Any = named.rate if learning_rate is None else learning_rate
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
        raise ValueRangeError(
            "PD579", "a learning rate is a positive number", value=rate, accepted="such as 0.01"
        )
    constant = {key: (value, True) for key, value in named.values.items()}
    return named.make({"defaultLearningRate": (float(rate), False), **constant})
