"""Random numbers of ``forward``, replaced by constants where a job is compared with its program.

The replicas of a job draw other random numbers than one process, so dropout and its kin would make
every comparison fail. Dropout passes its input on, and what else is drawn becomes the mean of its
distribution, or the least number of a range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_DROPOUTS = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
    torch.feature_dropout,
    torch.alpha_dropout,
}

_MEANS: Mapping[Callable[..., Any], float] = {
    torch.rand: 0.5,
    torch.rand_like: 0.5,
    torch.randn: 0.0,
    torch.randn_like: 0.0,
    torch.Tensor.exponential_: 1.0,
    torch.Tensor.random_: 0.0,
}
"""The constant of each function whose distribution has no parameters."""


def _uniform(tensor: torch.Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> torch.Tensor:
    return tensor.fill_((low + high) / 2)


def _normal(tensor: torch.Tensor, mean: float = 0.0, *_: Any, **__: Any) -> torch.Tensor:
    return tensor.fill_(mean)


def _bernoulli_(tensor: torch.Tensor, p: Any = 0.5, **_: Any) -> torch.Tensor:
    return tensor.copy_(p) if isinstance(p, torch.Tensor) else tensor.fill_(p)


def _bernoulli(probabilities: torch.Tensor, p: float | None = None, **_: Any) -> torch.Tensor:
    return probabilities.clone() if p is None else torch.full_like(probabilities, p)


def _randint(*args: Any, **kwargs: Any) -> torch.Tensor:
    low = args[0] if len(args) > 2 else kwargs.get("low", 0)  # noqa: PLR2004 - low, high, size
    return torch.randint(*args, **kwargs).fill_(low)


def _randperm(count: int, **kwargs: Any) -> torch.Tensor:
    return torch.randperm(count, **kwargs).copy_(torch.arange(count))


_CONSTANT: Mapping[Callable[..., Any], Callable[..., torch.Tensor]] = {
    torch.Tensor.uniform_: _uniform,
    torch.Tensor.normal_: _normal,
    torch.Tensor.bernoulli_: _bernoulli_,
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
    torch.randint: _randint,
    torch.randperm: _randperm,
}


class ConstantDraws(TorchFunctionMode):
    """Wraps a forward pass that draws no random number."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch, or what stands in its place."""
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func in _MEANS:
            return func(*args, **kwargs).fill_(_MEANS[func])
        if func in _CONSTANT:
            return _CONSTANT[func](*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            args, kwargs = args[:4], {**kwargs, "dropout_p": 0.0, **_causal(args)}
        return func(*args, **kwargs)


def _causal(args: Sequence[Any]) -> dict[str, Any]:
    """Positional arguments of attention after the ratio of dropout, by name."""
    names = ("is_causal", "scale", "enable_gqa")
    return dict(zip(names, args[5:], strict=False))
