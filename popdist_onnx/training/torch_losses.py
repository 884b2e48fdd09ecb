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


_LEAST_LOGARITHM, _TINY = -100.0, 1e-12
"""What torch takes for the logarithm of 0, and adds to squared lengths."""


def written_out_losses() -> AbstractContextManager[Any]:
    """A context in which losses without an operator are computed by others."""
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
        functional.binary_cross_entropy: _binary_cross_entropy,
        functional.cosine_embedding_loss: _cosine_embedding,
        functional.cross_entropy: _cross_entropy,
        functional.hinge_embedding_loss: _hinge_embedding,
        functional.huber_loss: _huber,
        functional.l1_loss: _l1,
        functional.margin_ranking_loss: _margin_ranking,
        functional.multi_margin_loss: _multi_margin,
        functional.poisson_nll_loss: _poisson,
        **({functional.rms_norm: _rms_norm} if hasattr(functional, "rms_norm") else {}),
        functional.smooth_l1_loss: _smooth_l1,
        functional.soft_margin_loss: _soft_margin,
        functional.triplet_margin_loss: _triplet_margin,
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


def _binary_cross_entropy(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
) -> torch.Tensor:
    import torch

    def logarithm(p: torch.Tensor) -> torch.Tensor:
        # Where p is 0, so is the slope of whatever made it; log(0) would make the product NaN.
        known = p > 0
        found = torch.where(known, p, torch.ones_like(p)).log().clamp(min=_LEAST_LOGARITHM)
        return torch.where(known, found, torch.full_like(p, _LEAST_LOGARITHM))

    rows = -(target * logarithm(input) + (1 - target) * logarithm(1 - input))
    return _reduced(rows if weight is None else rows * weight, reduction)


def _hinge_embedding(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    margin: float,
    reduction: str,
) -> torch.Tensor:
    far = (margin - input).clamp(min=0).masked_fill(target == 1, 0.0)
    return _reduced(far + input.masked_fill(target == -1, 0.0), reduction)


def _cosine_embedding(
    input1: torch.Tensor,
    input2: torch.Tensor,
    target: torch.Tensor,
    margin: float,
    reduction: str,
) -> torch.Tensor:
    axis = target.dim()
    sizes = (input1.square().sum(axis) + _TINY) * (input2.square().sum(axis) + _TINY)
    cosine = (input1 * input2).sum(axis) / sizes.sqrt()
    alike = (1 - cosine).masked_fill(target != 1, 0.0)
    other = (cosine - margin).clamp(min=0).masked_fill(target != -1, 0.0)
    return _reduced(alike + other, reduction)


def _margin_ranking(
    input1: torch.Tensor,
    input2: torch.Tensor,
    target: torch.Tensor,
    margin: float,
    reduction: str,
) -> torch.Tensor:
    return _reduced((margin - target * (input1 - input2)).clamp(min=0), reduction)


def _multi_margin(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    p: int,
    margin: float,
    weight: torch.Tensor | None,
    reduction: str,
) -> torch.Tensor:
    import torch

    place = target.unsqueeze(-1)
    beyond = (margin - input.gather(-1, place) + input).clamp(min=0)
    beyond = beyond.square() if p == 2 else beyond  # noqa: PLR2004 - 1 and 2 are what torch takes
    if weight is not None:
        beyond = beyond * weight[target].unsqueeze(-1)
    others = torch.arange(input.shape[-1]) != place
    return _reduced((beyond * others).mean(-1), reduction)


def _triplet_margin(
    anchor: torch.Tensor,
    positive: torch.Tensor,
    negative: torch.Tensor,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
    reduction: str,
) -> torch.Tensor:
    import torch

    def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        away = (a - b + eps).abs()
        if p == 1:
            return away.sum(-1)
        if p == float("inf"):
            return away.amax(-1)
        return away.square().sum(-1).sqrt() if p == 2 else (away**p).sum(-1) ** (1 / p)  # noqa: PLR2004

    far = distance(anchor, negative)
    if swap:
        far = torch.minimum(far, distance(positive, negative))
    return _reduced((margin + distance(anchor, positive) - far).clamp(min=0), reduction)


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
