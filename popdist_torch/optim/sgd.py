"""Stochastic gradient descent by PopART's formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.optim.scaled import OwnStep, clip_factor, positive

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class DescentExtras(TypedDict, total=False):
        """What descent takes beyond torch's own arguments."""

        loss_scaling: float | None
        velocity_scaling: float | None
        use_combined_accum: bool | None
        accum_type: torch.dtype | None
        velocity_accum_type: torch.dtype | None
        max_grad_norm: float | None


class SGD(OwnStep, torch.optim.SGD):
    """SGD with momentum, weight decay and dampening.

    With gradient g, velocity v (at first 0), momentum m, dampening dm and weight decay wd::

        v = m v + (1 - dm) (g + wd w)
        w = w - lr v                      Nesterov: w = w - lr (g + wd w + m v)

    Without momentum the same holds with m = 0. This differs from ``torch.optim.SGD`` where dm is
    not 0: torch neither dampens the first velocity, nor anything without momentum.

    ``max_grad_norm`` limits the tensors that PopART limits. Without momentum these are the raw
    gradients: their sum over replicas and accumulation steps, times the loss scaling, before any
    division and without weight decay. With momentum they are what is subtracted from the weights
    (v, or with Nesterov g + wd w + m v), times the loss scaling, or with ``use_combined_accum``
    times ``velocity_scaling``; the stored velocity is not limited. In a plain loop, without an
    executor, nothing is known of such factors and gradients are limited as they are.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        momentum: As above.
        dampening: As above.
        weight_decay: As above.
        nesterov: As above.
        maximize: Whether to climb.
        **extras: ``loss_scaling``, the factor of the loss in backward passes; ``max_grad_norm``,
            ``velocity_scaling`` and ``use_combined_accum`` as above; stored: ``accum_type`` and
            ``velocity_accum_type``.
    """

    acting = ("loss_scaling", "max_grad_norm", "velocity_scaling", "use_combined_accum")
    only_stored = ("accum_type", "velocity_accum_type")

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **extras: Unpack[DescentExtras],
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)
        velocity_scaling = extras.pop("velocity_scaling", None)
        scaling = 1.0 if velocity_scaling is None else velocity_scaling
        self.velocity_scaling = positive("velocity_scaling", scaling)
        self.use_combined_accum = bool(extras.pop("use_combined_accum", None))
        self._set_extras(**extras)

    def accumulators(self, group: dict[str, Any]) -> dict[str, tuple[str, float]]:
        """PopART's prefix of each tensor of the state; see `Scaled`.

        A combined accumulator is another value: it is the next step's, with its weight decay.
        """
        if not group["momentum"] or self.use_combined_accum:
            return {}
        return {"momentum_buffer": ("Accl1", self.loss_scaling)}

    def _update_all(self) -> None:
        updates = [self._lessening(group) for group in self.param_groups]
        updates = [update for update in updates if update[0]]
        if self.max_grad_norm is not None and updates:
            updates = self._limited(self.max_grad_norm, updates)
        for weights, steps, rate, decay in updates:
            if decay != 1:
                torch._foreach_mul_(weights, decay)
            torch._foreach_add_(weights, steps, alpha=-rate)

    def _lessening(self, group: dict[str, Any]) -> _Update:
        """What a group's weights are to lose: steps times rate, after a factor of the weights."""
        weights = [p for p in group["params"] if p.grad is not None]
        steps: list[torch.Tensor] = [p.grad for p in weights]
        if group["maximize"] and weights:
            steps = list(torch._foreach_neg(steps))  # noqa: SLF001 - one call for all
        momentum, kept, decay = group["momentum"], 1 - group["dampening"], group["weight_decay"]
        if not momentum or not weights:
            return weights, steps, group["lr"] * kept, 1 - group["lr"] * kept * decay
        if decay:
            steps = list(torch._foreach_add(steps, weights, alpha=decay))  # noqa: SLF001 - one call for all
        velocities = [self._velocity(weight) for weight in weights]
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, steps, alpha=kept)
        if group["nesterov"]:
            steps = list(torch._foreach_add(steps, velocities, alpha=momentum))  # noqa: SLF001 - one call for all
        else:
            steps = velocities
        return weights, steps, group["lr"], 1

    def _velocity(self, weight: torch.Tensor) -> torch.Tensor:
        state = self.state[weight]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(weight)
        velocity: torch.Tensor = state["momentum_buffer"]
        return velocity

    def _limited(self, limit: float, updates: list[_Update]) -> list[_Update]:
        fed = [step for _, steps, _, _ in updates for step in steps]
        factor = clip_factor(limit, fed, self._scale())
        return [
            (weights, list(torch._foreach_mul(steps, factor)), rate, decay)  # noqa: SLF001
            for weights, steps, rate, decay in updates
        ]

    def _scale(self) -> float:
        if self.gradient_divisor is None:
            return 1.0
        scaling = self.loss_scaling * self.loss_scale_update_factor
        if not any(group["momentum"] for group in self.param_groups):
            return scaling * self.gradient_divisor
        return self.velocity_scaling if self.use_combined_accum else scaling


if TYPE_CHECKING:
    _Update = tuple[list[torch.Tensor], list[torch.Tensor], float, float]
