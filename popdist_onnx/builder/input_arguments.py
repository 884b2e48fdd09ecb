"""The published ways to say what an input is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_onnx.builder.naming import debug_name
from popdist_onnx.errors import ArgumentError
from popdist_onnx.types import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping


def input_info(arguments: tuple[Any, ...]) -> tuple[TensorInfo, tuple[Any, ...]]:
    """Reads type and shape off the arguments of an input.

    Args:
        arguments: A `TensorInfo`, or an element type and a shape; then perhaps more.

    Returns:
        Type and shape, and what is left.

    Raises:
        ArgumentError: The arguments are neither of these.
    """
    match arguments:
        case (TensorInfo() as info, *rest):
            return info, tuple(rest)
        case (dtype, shape, *rest) if not isinstance(shape, str):
            return TensorInfo(dtype, shape), tuple(rest)
        case _:
            raise ArgumentError(
                "PD507",
                "addInputTensor takes a TensorInfo, or an element type and a shape",
                value=arguments,
                hint='write addInputTensor("FLOAT", [2, 3])',
            )


def input_name(
    method: str, rest: tuple[object, ...], context: object, old: Mapping[str, object]
) -> str:
    """Reads an input's name off its arguments, of which it is the last, or one of two by name.

    Args:
        method: What was called, for messages.
        rest: What is left of the arguments by place.
        context: The argument ``debugContext``.
        old: Other arguments by name.

    Returns:
        The name; empty without one.

    Raises:
        ArgumentError: There are other arguments.
    """
    given = [*rest, *[one for name, one in old.items() if name == "debugPrefix"]]
    unknown = [name for name in old if name != "debugPrefix"]
    if unknown or len(given) > 1:
        raise ArgumentError(
            "PD501",
            f"{method} was given arguments that it does not take",
            value=unknown or given,
            accepted="debugContext",
        )
    return debug_name(given[0] if given else context)
