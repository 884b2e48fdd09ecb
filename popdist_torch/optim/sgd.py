"""Stochastic gradient descent by PopART's formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.optim.scaled import Scaled

if TYPE_CHECKING:
    from collections.abc import Callable


class SGD(Scaled, torch.optim.SGD):
    """SGD with momentum, weight decay and dampening.

    With gradient g, velocity v (at first 0), momentum m, dampening dm and weight decay wd::

        v = m v + (1 - dm) (g + wd w)
        w = w - lr v                      Nesterov: w = w - lr (g + wd w + m v)

    Without momentum the same holds with m = 0. This differs from ``torch.optim.SGD`` where dm is
    not 0: torch neither dampens the first velocity, nor anything without momentum.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        momentum: As above.
        dampening: As above.
        weight_decay: As above.
        nesterov: As above.
        maximize: Whether to climb.
        loss_scaling: Factor of the loss in backward passes.
        velocity_scaling: Stored.
        use_combined_accum: Stored.
        accum_type: Stored.
        velocity_accum_type: Stored.
        max_grad_norm: Largest norm of all averaged gradients together.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)
        self._set_extras(
            loss_scaling,
            max_grad_norm,
            velocity_scaling=velocity_scaling,
            use_combined_accum=use_combined_accum,
            accum_type=accum_type,
            velocity_accum_type=velocity_accum_type,
        )

    # Complete on its own: torch runs step hooks once more in a step that calls its parent's.
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates the parameters from their gradients.

        Args:
            closure: Evaluates the model first.

        Returns:
            What ``closure`` returned.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        direction = -gradient if group["maximize"] else gradient
        if group["weight_decay"]:
            direction = direction.add(weight, alpha=group["weight_decay"])
        momentum, kept = group["momentum"], 1 - group["dampening"]
        if not momentum:
            weight.add_(direction, alpha=-group["lr"] * kept)
            return
        state = self.state[weight]
        velocity = state.setdefault("momentum_buffer", None)
        if velocity is None:
            velocity = state["momentum_buffer"] = torch.zeros_like(weight)
        velocity.mul_(momentum).add_(direction, alpha=kept)
        if group["nesterov"]:
            weight.add_(direction.add(velocity, alpha=momentum), alpha=-group["lr"])
        else:
            weight.add_(velocity, alpha=-group["lr"])
