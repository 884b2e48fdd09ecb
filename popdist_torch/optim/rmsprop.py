"""RMSprop, and the variant of it that TensorFlow computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.optim.scaled import MOMENT_TYPES, OwnStep

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from popdist_torch.optim.scaled import MomentExtras


class RMSprop(OwnStep, torch.optim.RMSprop):
    """RMSprop.

    With gradient g (weight decay added), square average s and mean gradient a (if centered)::

        s = alpha s + (1 - alpha) g^2,  a = alpha a + (1 - alpha) g
        torch:       b = m b + g / (sqrt(s - a^2) + eps),         w = w - lr b
        TensorFlow:  b = m b + lr g / sqrt(s - a^2 + eps),        w = w - b

    where s starts at 0 for the first and at 1 for the second.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        alpha: Decay of the averages.
        eps: As above.
        weight_decay: Weight decay.
        momentum: m.
        centered: Whether the mean gradient is taken off.
        maximize: Whether to climb.
        use_tf_variant: Which of the two; fixed for the optimizer's life.
        **extras: ``loss_scaling``, the factor of the loss in backward passes; stored:
            ``accum_type``, ``first_order_momentum_accum_type``,
            ``second_order_momentum_accum_type``.
    """

    acting = ("loss_scaling", "use_tf_variant")
    only_stored = MOMENT_TYPES

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        use_tf_variant: bool = False,
        **extras: Unpack[MomentExtras],
    ) -> None:
        settings: Any = {"maximize": maximize}
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, centered, **settings)
        self.use_tf_variant = bool(use_tf_variant)
        self._set_extras(**extras)

    def accumulators(self, group: dict[str, Any]) -> dict[str, tuple[str, float]]:
        """PopART's prefix of each tensor of the state; see `Scaled`."""
        found = {"square_avg": ("Accl1", 1.0), "step": ("Step", 1.0)}
        if group["centered"]:
            found["grad_avg"] = ("Accl2", 1.0)
        return found | ({"momentum_buffer": ("Accl3", 1.0)} if group["momentum"] else {})

    def first_value(self, key: str, shape: torch.Size) -> torch.Tensor:
        """What a tensor of the state is before the first update; see `Scaled`."""
        ones = key == "square_avg" and self.use_tf_variant
        return torch.ones(shape) if ones else super().first_value(key, shape)

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight] or self._begin(weight, group)
        state["step"] += 1
        g = -gradient if group["maximize"] else gradient
        if group["weight_decay"]:
            g = g.add(weight, alpha=group["weight_decay"])
        alpha, lr, eps = group["alpha"], group["lr"], group["eps"]
        square = state["square_avg"].mul_(alpha).addcmul_(g, g, value=1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"].lerp_(g, 1 - alpha)
            square = square.addcmul(mean, mean, value=-1)
        root = square.add(eps).sqrt_() if self.use_tf_variant else square.sqrt().add_(eps)
        if not group["momentum"]:
            weight.addcdiv_(g, root, value=-lr)
            return
        buffer = state["momentum_buffer"].mul_(group["momentum"])
        if self.use_tf_variant:
            weight.sub_(buffer.addcdiv_(g, root, value=lr))
        else:
            weight.add_(buffer.addcdiv_(g, root), alpha=-lr)

    def _begin(self, weight: torch.Tensor, group: dict[str, Any]) -> dict[str, Any]:
        first = torch.ones_like if self.use_tf_variant else torch.zeros_like
        state: dict[str, Any] = self.state[weight]
        state["step"] = torch.tensor(0.0)
        state["square_avg"] = first(weight)
        if group["momentum"] > 0:
            state["momentum_buffer"] = torch.zeros_like(weight)
        if group["centered"]:
            state["grad_avg"] = torch.zeros_like(weight)
        return state
