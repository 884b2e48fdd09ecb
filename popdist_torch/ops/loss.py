"""Marks a value as the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from popdist_torch.errors import OptionValueError

if TYPE_CHECKING:
    from collections.abc import Callable

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": torch.clone,
    "mean": torch.mean,
    "sum": torch.sum,
}


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Marks a value as the loss that training minimises.

    Args:
        x: The value, of any shape.
        reduction: ``"none"`` keeps the shape, ``"mean"`` and ``"sum"`` reduce over all elements.

    Returns:
        The marked value; training differentiates the sum of its elements.

    Raises:
        OptionValueError: Another reduction.
    """
    # Lets a mode that watches torch functions see this one call, as it sees those of torch.
    if has_torch_function_unary(x):
        return handle_torch_function(identity_loss, (x,), x, reduction)
    if reduction not in _REDUCTIONS:
        raise OptionValueError(
            "PD303",
            "identity_loss knows no such reduction",
            value=reduction,
            accepted="'none', 'mean' or 'sum'",
        )
    marked: torch.Tensor = _REDUCTIONS[reduction](x)
    return marked
