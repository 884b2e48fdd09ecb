"""Loops and branches that an IPU runs by itself; on a host they are Python's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import Error, OptionValueError
from popdist_torch.options.option_methods import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def for_loop(
    count: int, body: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Calls a function repeatedly, each time with the results of the call before.

    The function gets copies of its tensors, so changes in place are not seen outside.

    Args:
        count: The number of calls.
        body: A function that returns as many tensors as it takes, of equal shapes and dtypes.
        inputs: The tensors of the first call.

    Returns:
        The tensors of the last call; ``inputs`` where ``count`` is 0.

    Raises:
        OptionValueError: ``inputs`` is not a list, or ``body`` returns something else than it took.
    """
    whole_number("for_loop", count, least=0)
    if not isinstance(inputs, list | tuple):
        raise OptionValueError(
            "PD300",
            "for_loop takes a list of tensors (Object is not list)",
            value=type(inputs).__name__,
        )
    values = list(inputs)
    for index, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise OptionValueError(
                "PD300",
                "for_loop takes a list of tensors (Object contained in list at index "
                f"{index} is not torch.tensor)",
                value=value,
            )
    for _ in range(count):
        results = body(*_copies(values))
        results = list(results) if isinstance(results, list | tuple) else [results]
        if _kinds(results) != _kinds(values):
            raise OptionValueError(
                "PD300",
                "the body of a for_loop must return what it takes",
                value=_kinds(results),
                accepted=str(_kinds(values)),
            )
        values = results
    return values if count else _copies(values)


def cond(
    condition: torch.Tensor | bool,
    then_body: Callable[..., Any],
    then_inputs: Sequence[Any],
    else_body: Callable[..., Any],
    else_inputs: Sequence[Any],
) -> tuple[Any, ...]:
    """Calls one of two functions, as a condition says.

    The function gets copies of its tensors, so changes in place are not seen outside.

    Args:
        condition: A bool, or a tensor of one element, of any dtype.
        then_body: The function for a true condition.
        then_inputs: The arguments of ``then_body``.
        else_body: The function for a false condition.
        else_inputs: The arguments of ``else_body``.

    Returns:
        The results of the function that was called, as a tuple.

    Raises:
        OptionValueError: ``condition`` has not exactly one element.
    """
    if isinstance(condition, torch.Tensor) and condition.numel() != 1:
        raise OptionValueError(
            "PD300", "the condition of cond is one element", value=tuple(condition.shape)
        )
    result = then_body(*_copies(then_inputs)) if condition else else_body(*_copies(else_inputs))
    return tuple(result) if isinstance(result, list | tuple) else (result,)


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor | int, size: int, step: int = 1
) -> torch.Tensor:
    """Some rows of a tensor, from a place that is known at run time only.

    Args:
        tensor: A tensor of any shape and dtype.
        dim: The dimension of the rows.
        start: Index of the first row: a number, or a tensor of one whole number.
        size: The number of rows that the slice spans.
        step: The distance from one returned row to the next.

    Returns:
        Every ``step``-th of the ``size`` rows, in memory of their own: of the tensor's dtype and
        shape, except in ``dim``.

    Raises:
        Error: The tensor has no such rows, or ``step`` is not positive.
    """
    first = int(start)
    _require_within(tensor, dim, first, size)
    if step < 1:
        raise Error("PD300", "the step of a slice must be positive", value=step)
    index = torch.arange(first, first + size, step, device=tensor.device)
    return tensor.index_select(dim, index)


def dynamic_update(
    input: torch.Tensor,  # noqa: A002 - its published name
    src: torch.Tensor,
    dim: int,
    start: torch.Tensor | int,
    size: int,
) -> torch.Tensor:
    """A tensor with some of its rows replaced, at a place that is known at run time only.

    Args:
        input: A tensor of any shape and dtype; it does not change.
        src: The new rows: of the input's shape, except for ``size`` rows in ``dim``.
        dim: The dimension of the rows.
        start: Index of the first row: a number, or a tensor of one whole number.
        size: The number of rows.

    Returns:
        A new tensor of the input's shape and dtype.

    Raises:
        Error: There are no such rows, or ``src`` has another number of them, another number of
            dimensions or another dtype.
    """
    if input.dim() != src.dim():
        raise Error(
            "PD300",
            "input and src tensors must have same dimensionality. "
            f"({input.dim()}) vs ({src.dim()})",
        )
    if input.dtype != src.dtype:
        raise Error(
            "PD300", f"input and src tensor must have same dtype. ({input.dtype} vs {src.dtype})"
        )
    first = int(start)
    _require_within(input, dim, first, size)
    if src.shape[dim] != size:
        raise Error("PD300", "src must have size rows", value=tuple(src.shape), accepted=str(size))
    return torch.slice_scatter(input, src, dim, first, first + size)


def _copies(values: Sequence[Any]) -> list[Any]:
    """Tensors that a function may change in place without changing the caller's."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _require_within(tensor: torch.Tensor, dim: int, first: int, size: int) -> None:
    if size == 0:
        raise Error("PD300", "The start and end of a slice must be different.", value=size)
    if size < 0:
        raise Error(
            "PD300",
            "Taking a slice of a tensor with the end less than the start is not supported.",
            value=size,
        )
    if not (first >= 0 and first + size <= tensor.shape[dim]):
        raise Error(
            "PD300",
            "the rows lie outside the tensor",
            value=f"{size} rows from {first}",
            accepted=f"within {tensor.shape[dim]}",
        )


def _kinds(values: Sequence[Any]) -> list[Any]:
    return [(tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else v for v in values]
