"""Hooks of a program that see a gradient before it is summed over all replicas.

A hook of ``Tensor.register_hook`` sees the gradient of one replica's micro-batch. What it makes of
several gradients has to add up to what it makes of their sum; masks, factors and projections do,
clipping does not. A hook of ``register_post_accumulate_grad_hook`` runs while the gradient is being
exchanged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import GradientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_OF_STEPS = (
    "change gradients where they are those of all replicas: {}in a hook of "
    "optimizer.register_step_pre_hook"
)
_TOLERANCES = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 1e-3}
_ROUGH = 3e-2


def of_popdist(hook: Any) -> bool:
    """Whether a hook of a parameter is one that exchanges its gradient."""
    module = getattr(hook.func if isinstance(hook, partial) else hook, "__module__", None)
    return str(module).startswith("popdist_torch.")


def require_possible(named: Iterable[tuple[str, torch.Tensor]], *, loop: bool) -> None:
    """Refuses hooks after accumulation, and starts to watch hooks of single gradients.

    Args:
        named: Parameters by name.
        loop: Whether the program calls ``backward`` itself.

    Raises:
        GradientError: A hook runs while its gradient is being exchanged.
    """
    for name, parameter in named:
        after = parameter._post_accumulate_grad_hooks  # noqa: SLF001 - no public name
        if after and not all(map(of_popdist, after.values())):
            raise GradientError(
                "PD312",
                "a hook of register_post_accumulate_grad_hook runs on one replica's part of the "
                "gradient, before it is summed",
                value=name,
                hint=_OF_STEPS.format("between backward() and step(), or " if loop else ""),
            )
        hooks: dict[int, Any] = parameter._backward_hooks or {}  # noqa: SLF001 - as above
        for key, hook in hooks.items():
            if not isinstance(hook, _Watched) and not of_popdist(hook):
                hooks[key] = _Watched(hook, name, loop=loop)


class _Watched:
    """Calls a program's hook, and checks that its results add up."""

    def __init__(self, hook: Callable[[torch.Tensor], Any], name: str, *, loop: bool) -> None:
        self._hook = hook
        self._name = name
        self._loop = loop
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None
        self._adds_up = False

    def __call__(self, gradient: torch.Tensor) -> Any:
        """Returns what the hook returns.

        Raises:
            GradientError: The hook does to a sum of gradients something else than to its parts.
        """
        result = self._hook(gradient)
        if self._adds_up or not isinstance(result, torch.Tensor) or gradient.requires_grad:
            return result
        now = (gradient, result)
        if all(torch.isfinite(value).all() for value in now):
            if self._before is None:
                self._before = (gradient.clone(), result.clone())
            elif not self._same_factors(*now, *self._before):
                self._require_sum(*now, self._before[0])
        return result

    def _same_factors(self, *values: torch.Tensor) -> bool:
        """Whether each element was multiplied with the same number in both passes."""
        now, result, before, result_before = values
        return close(result * before, result_before * now)

    def _require_sum(
        self, gradient: torch.Tensor, result: torch.Tensor, other: torch.Tensor
    ) -> None:
        if not close(self._hook(gradient + other), result + self._hook(other.clone())):
            raise GradientError(
                "PD314",
                "a hook of Tensor.register_hook sees one replica's gradient before it is summed, "
                "and what it does to parts of the gradient does not add up to what it would do to "
                "the sum",
                value=f"{self._name}{place_of(self._hook)}",
                accepted="hooks that multiply or project gradients, such as masks",
                hint=_OF_STEPS.format("between backward() and step(), or " if self._loop else ""),
            )
        self._adds_up = True


def place_of(hook: Any) -> str:
    """Where a hook was written, for messages; nothing where it has no code."""
    code = getattr(hook, "__code__", None)
    return f", {code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two gradients are equal but for rounding."""
    size = one.norm() + other.norm()
    return bool((one - other).norm() <= _TOLERANCES.get(one.dtype, _ROUGH) * size)
