"""Settings of the front door: those that exist, with numbers that make sense."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from popdist.nearest import did_you_mean
from popdist_onnx.errors import ArgumentError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def require_known(function: Callable[..., Any], given: Iterable[str]) -> None:
    """Checks names of settings against those that a function takes.

    Args:
        function: The function.
        given: The names.

    Raises:
        ArgumentError: It takes no such setting.
    """
    known = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for name in given:
        if name not in known:
            raise ArgumentError(
                "PD579",
                f"there is no setting {name}",
                accepted=", ".join([*known, "epochs"]),
                hint=did_you_mean(name, known),
            )


def require_positive(**numbers: object) -> None:
    """Checks counts.

    Args:
        **numbers: Counts by name.

    Raises:
        ValueRangeError: One is no positive whole number.
    """
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueRangeError(
                "PD579", f"{name} is a positive whole number", value=number, accepted="1 or more"
            )
