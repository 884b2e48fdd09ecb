"""Losses of torch, and RMSNorm, that its exporters have no operators for, written out in others.

One exporter refuses label smoothing and some losses, the other one leaves the smoothing out; both
take probabilities for class numbers. While a module is exported, calls of these functions compute
the same from simpler ones. What comes out is compared with the module itself afterwards, as every
export is.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import torch


def written_out_losses() -> AbstractContextManager[Any]:
    """A context in which losses without an operator are computed by others.

    Returns:
        The context.
    """
    from torch.overrides import TorchFunctionMode

    forms = _forms()

    class WrittenOut(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            del types
            kwargs = kwargs or {}
            form = forms.get(func)
            if form is None:
                return func(*args, **kwargs)
            said = inspect.signature(func).bind(*args, **kwargs)
            said.apply_defaults()
            given = said.arguments
            old = {name: given.pop(name, None) for name in ("size_average", "reduce")}
            made = None if any(one is not None for one in old.values()) else form(**given)
            return func(*args, **kwargs) if made is None else made

    return WrittenOut()


def _forms() -> dict[Callable[..., Any], Callable[..., torch.Tensor | None]]:
    from torch.nn import functional

    return {
        functional.cross_entropy: _cross_entropy,
        functional.huber_loss: _huber,
        functional.l1_loss: _l1,
        functional.poisson_nll_loss: _poisson,
        **({functional.rms_norm: _rms_norm} if hasattr(functional, "rms_norm") else {}),
        functional.smooth_l1_loss: _smooth_l1,
        functional.soft_margin_loss: _soft_margin,
    }


def _cross_entropy(
    input: torch.Tensor,  # noqa: A002 - torch's name, as below
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> torch.Tensor | None:
    """Probabilities as targets, or smoothed labels; None for what has an operator."""
    from torch.nn import functional

    axis = min(input.dim() - 1, 1)
    classes = input.shape[axis]
    soft = target.is_floating_point()
    if not soft and not label_smoothing:
        return None
    scores = functional.log_softmax(input, axis)
    weighted = scores
    if weight is not None:
        weighted = scores * weight.reshape([-1 if one == axis else 1 for one in range(input.dim())])
    if soft:
        wanted = target * (1 - label_smoothing) + label_smoothing / classes
        rows = -(weighted * wanted).sum(axis)
        return _reduced(rows, reduction)
    sharp = functional.nll_loss(
        scores, target, weight, ignore_index=ignore_index, reduction=reduction
    )
    counted = target != ignore_index
    rows = (-weighted.sum(axis)).masked_fill(~counted, 0.0)
    if reduction == "mean":
        share = counted.to(input.dtype)
        if weight is not None:
            share = share * weight[target.masked_fill(~counted, 0)]
        spread = rows.sum() / share.sum()
    else:
        spread = _reduced(rows, reduction)
    return sharp * (1 - label_smoothing) + spread * (label_smoothing / classes)


def _huber(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    reduction: str,
    delta: float,
    weight: torch.Tensor | None = None,
) -> torch.Tensor | None:
    if weight is not None:
        return None
    away = (input - target).abs()
    near = away.clamp(max=delta)
    return _reduced(near * (away - near / 2), reduction)


def _l1(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    reduction: str,
    weight: torch.Tensor | None = None,
) -> torch.Tensor | None:
    return None if weight is not None else _reduced((input - target).abs(), reduction)


def _smooth_l1(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    reduction: str,
    beta: float,
) -> torch.Tensor:
    away = (input - target).abs()
    if not beta:
        return _reduced(away, reduction)
    near = away.clamp(max=beta)
    return _reduced(near * (away - near / 2) / beta, reduction)


def _poisson(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    log_input: bool,
    full: bool,
    eps: float,
    reduction: str,
) -> torch.Tensor:
    import torch

    rows = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        # Stirling's formula, which holds for targets above one only.
        far = target.clamp(min=1)
        terms = far * far.log() - far + 0.5 * (2 * torch.pi * far).log()
        rows = rows + terms.masked_fill(target <= 1, 0.0)
    return _reduced(rows, reduction)


def _soft_margin(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    reduction: str,
) -> torch.Tensor:
    from torch.nn import functional

    return _reduced(functional.softplus(-target * input), reduction)


def _rms_norm(
    input: torch.Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    eps: float | None,
) -> torch.Tensor:
    import torch

    axes = list(range(-len(normalized_shape), 0))
    least = torch.finfo(input.dtype).eps if eps is None else eps
    made = input * (input.square().mean(axes, keepdim=True) + least).rsqrt()
    return made if weight is None else made * weight


def _reduced(rows: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "mean":
        return rows.mean()
    return rows.sum() if reduction == "sum" else rows
