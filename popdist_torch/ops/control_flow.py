"""Loops and branches that an IPU runs by itself; on a host they are Python's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptionValueError
from popdist_torch.options.settings import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def for_loop(
    count: int, body: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Feeds a function its own results.

    The function gets copies: what it changes in place is not a tensor of the caller's.

    Args:
        count: How many times.
        body: Takes as many tensors as it returns, of the same shapes and types.
        inputs: What it gets first.

    Returns:
        What it returned last.

    Raises:
        OptionValueError: ``inputs`` is not a list, or ``body`` returns something else than it took.
    """
    whole_number("for_loop", count, least=0)
    if not isinstance(inputs, list | tuple):
        raise OptionValueError(
            "PD300", "for_loop takes a list of tensors", value=type(inputs).__name__
        )
    values = list(inputs)
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
    """Calls one of two functions, with copies of the tensors that it gets.

    Args:
        condition: Which: a bool, or a tensor of one element.
        then_body: Called where it is true.
        then_inputs: With these.
        else_body: Called where it is not.
        else_inputs: With these.

    Returns:
        What it returned, as a tuple.
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
        tensor: The tensor.
        dim: Its dimension.
        start: The first row.
        size: The extent that the rows come from.
        step: Every how many-th row; divides ``size``.

    Returns:
        The rows, in memory of their own.

    Raises:
        OptionValueError: There are no such rows.
    """
    first = int(start)
    _require_within(tensor, dim, first, size)
    if step < 1 or size % step:
        raise OptionValueError("PD300", "step must divide size", value=step, accepted=str(size))
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
        input: The tensor.
        src: The new rows.
        dim: The dimension.
        start: The first row.
        size: Number of rows.

    Returns:
        A new tensor.

    Raises:
        OptionValueError: There are no such rows, or ``src`` has another number of them.
    """
    first = int(start)
    _require_within(input, dim, first, size)
    if src.shape[dim] != size:
        raise OptionValueError(
            "PD300", "src must have size rows", value=tuple(src.shape), accepted=str(size)
        )
    return torch.slice_scatter(input, src, dim, first, first + size)


def _copies(values: Sequence[Any]) -> list[Any]:
    """Tensors that a function may change in place without changing the caller's."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _require_within(tensor: torch.Tensor, dim: int, first: int, size: int) -> None:
    if not (first >= 0 and size > 0 and first + size <= tensor.shape[dim]):
        raise OptionValueError(
            "PD300",
            "the rows lie outside the tensor",
            value=f"{size} rows from {first}",
            accepted=f"within {tensor.shape[dim]}",
        )


def _kinds(values: Sequence[Any]) -> list[Any]:
    return [(tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else v for v in values]
