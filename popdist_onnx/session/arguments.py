"""Checks of what a program hands to a session: objects of the right kind, before anything else."""

from __future__ import annotations

from collections.abc import Mapping

from popdist_onnx.errors import ArgumentError
from popdist_onnx.types import DataFlow, SessionOptions


def options_of(given: object) -> SessionOptions:
    """Checks a session's options.

    Args:
        given: The options; None takes the defaults.

    Returns:
        The options.

    Raises:
        ArgumentError: They are something else.
    """
    if given is None:
        return SessionOptions()
    if not isinstance(given, SessionOptions):
        raise ArgumentError(
            "PD572",
            "userOptions is no SessionOptions",
            value=type(given).__name__,
            hint="options = SessionOptions(); options.hostAllReduce = True; ...",
        )
    return given


def require_data_flow(given: object) -> None:
    """Checks a session's data flow.

    Args:
        given: The data flow.

    Raises:
        ArgumentError: It is something else.
    """
    if not isinstance(given, DataFlow):
        raise ArgumentError(
            "PD572",
            "dataFlow is no DataFlow",
            value=type(given).__name__,
            hint='DataFlow(batchesPerStep, {tensorId: AnchorReturnType("All")})',
        )


def require_id(name: str, given: object) -> None:
    """Checks a tensor's id.

    Args:
        name: What it is for.
        given: The id.

    Raises:
        ArgumentError: It is no text.
    """
    if not isinstance(given, str):
        raise ArgumentError(
            "PD523", f"{name} takes the id of a tensor, as text", value=type(given).__name__
        )


def require_arrays(name: str, given: object, code: str = "PD571") -> None:
    """Checks a mapping of arrays.

    Args:
        name: What it is for.
        given: The mapping.
        code: The error's code.

    Raises:
        ArgumentError: It is something else.
    """
    if not isinstance(given, Mapping):
        raise ArgumentError(
            code,
            f"{name} takes arrays by id",
            value=type(given).__name__,
            accepted="a dict from tensor id to numpy array",
        )


def require_step_io(given: object) -> None:
    """Checks what a step reads from and writes to.

    Args:
        given: The object.

    Raises:
        ArgumentError: It cannot take part in a step.
    """
    if not all(hasattr(given, name) for name in ("take", "taken", "place", "placed")):
        raise ArgumentError(
            "PD571",
            "a step takes a PyStepIO or a PyStepIOCallback",
            value=type(given).__name__,
            hint="session.run(PyStepIO(inputs, anchors))",
        )
