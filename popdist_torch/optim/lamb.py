"""LAMB: Adam's direction, scaled per tensor by the norm of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptionValueError
from popdist_torch.optim.scaled import ADAM_STATE, MOMENT_TYPES, OwnStep, positive

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from popdist_torch.optim.scaled import MomentExtras

_LARGEST_NORM = 65500.0


class LAMB(OwnStep):
    """LAMB (You et al., 2020), as PopART computes it.

    With the moments m and v of Adam, corrected for their start at 0 (or not)::

        x = m / (sqrt(v) + eps) + wd w
        w = w - lr min(|w|, max_weight_norm) / |x| x        factor 1 where a norm is 0

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: As above.
        weight_decay: wd.
        bias_correction: Whether moments are corrected.
        max_weight_norm: As above; None for 65500.
        **extras: ``loss_scaling``, the factor of the loss in backward passes; stored:
            ``accum_type``, ``first_order_momentum_accum_type``,
            ``second_order_momentum_accum_type``.

    Raises:
        OptionValueError: A setting is out of its range.
    """

    moments = ADAM_STATE
    acting = ("loss_scaling", "bias_correction", "max_weight_norm")
    only_stored = MOMENT_TYPES

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        bias_correction: bool = True,
        *,
        max_weight_norm: float | None = None,
        **extras: Unpack[MomentExtras],
    ) -> None:
        in_range = {
            "lr": lr >= 0,
            "eps": eps >= 0,
            "weight_decay": weight_decay >= 0,
            "betas": all(0 <= beta < 1 for beta in betas),
        }
        wrong = [name for name, holds in in_range.items() if not holds]
        if wrong:
            raise OptionValueError(
                "PD306",
                f"LAMB does not take such a value for {wrong[0]}",
                value={"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
                accepted="numbers from 0, betas below 1",
            )
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self.bias_correction = bool(bias_correction)
        limit = _LARGEST_NORM if max_weight_norm is None else max_weight_norm
        self.max_weight_norm = positive("max_weight_norm", limit)
        self._set_extras(**extras)

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1
        first = state["exp_avg"].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = second.sqrt()
        if self.bias_correction:
            step = state["step"].item()
            first = first / (1 - beta1**step)
            root /= (1 - beta2**step) ** 0.5
        direction = first / root.add_(group["eps"])
        if group["weight_decay"]:
            direction.add_(weight, alpha=group["weight_decay"])
        size, length = weight.norm().clamp(max=self.max_weight_norm), direction.norm()
        trust = torch.where((size > 0) & (length > 0), size / length, 1.0)
        weight.add_(direction.mul_(trust), alpha=-group["lr"])
