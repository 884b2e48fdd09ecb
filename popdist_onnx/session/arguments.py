"""Checks the types of a session's arguments."""

from __future__ import annotations

from collections.abc import Mapping

from popdist_onnx.errors import ArgumentError
from popdist_onnx.types import DataFlow, SessionOptions


def options_of(given: object) -> SessionOptions:
    """A session's options; None gives the defaults.

    Raises:
        ArgumentError: The argument is not a `SessionOptions`.
    """
    if given is None:
        return SessionOptions()
    if not isinstance(given, SessionOptions):
        raise ArgumentError(
            "PD572",
            "userOptions is not a SessionOptions object",
            value=type(given).__name__,
            hint="options = SessionOptions(); options.hostAllReduce = True; ...",
        )
    return given


def require_data_flow(given: object) -> None:
    """Checks a session's data flow.

    Raises:
        ArgumentError: The argument is not a `DataFlow`.
    """
    if not isinstance(given, DataFlow):
        raise ArgumentError(
            "PD572",
            "dataFlow is not a DataFlow object",
            value=type(given).__name__,
            hint='DataFlow(batchesPerStep, {tensorId: AnchorReturnType("All")})',
        )


def require_id(name: str, given: object) -> None:
    """Checks a tensor's id.

    Raises:
        ArgumentError: The id is not a str.
    """
    if not isinstance(given, str):
        raise ArgumentError(
            "PD523", f"{name} takes the id of a tensor, as text", value=type(given).__name__
        )


def require_arrays(name: str, given: object, code: str = "PD571") -> None:
    """Checks a mapping of arrays.

    Raises:
        ArgumentError: The argument is not a mapping of arrays.
    """
    if not isinstance(given, Mapping):
        raise ArgumentError(
            code,
            f"{name} takes arrays by id",
            value=type(given).__name__,
            accepted="a dict from tensor id to numpy array",
        )


def require_step_io(given: object) -> None:
    """Checks the data object of a step.

    Raises:
        ArgumentError: The object has no interface of a `StepIO`.
    """
    if not all(hasattr(given, name) for name in ("take", "taken", "place", "placed")):
        raise ArgumentError(
            "PD571",
            "a step takes a PyStepIO or a PyStepIOCallback",
            value=type(given).__name__,
            hint="session.run(PyStepIO(inputs, anchors))",
        )
