"""Adam and AdamW; PopART's formulas are torch's, up to rounding."""

from __future__ import annotations

from typing import Any

import torch

from popdist_torch.errors import OptionValueError
from popdist_torch.optim.scaled import Scaled


class Adam(Scaled, torch.optim.Adam):
    """Adam, with weight decay added to the gradient.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
        weight_decay: Weight decay.
        amsgrad: False.
        maximize: Whether to climb.
        loss_scaling: Factor of the loss in backward passes.
        accum_type: Stored.
        first_order_momentum_accum_type: Stored.
        second_order_momentum_accum_type: Stored.
        max_grad_norm: Largest norm of all averaged gradients together.

    Raises:
        OptionValueError: ``amsgrad`` was asked for.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        _no_amsgrad(amsgrad)
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)
        self._set_extras(
            loss_scaling,
            max_grad_norm,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )


class AdamW(Scaled, torch.optim.AdamW):
    """Adam, with weight decay apart from the gradient.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
        weight_decay: Weight decay, multiplied by the learning rate.
        amsgrad: False.
        maximize: Whether to climb.
        loss_scaling: Factor of the loss in backward passes.
        bias_correction: Stored; moments are corrected either way, as in PopTorch since SDK 2.6.
        accum_type: Stored.
        first_order_momentum_accum_type: Stored.
        second_order_momentum_accum_type: Stored.
        max_grad_norm: Largest norm of all averaged gradients together.

    Raises:
        OptionValueError: ``amsgrad`` was asked for.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
        loss_scaling: float | None = None,
        bias_correction: bool = True,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        _no_amsgrad(amsgrad)
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)
        self._set_extras(
            loss_scaling,
            max_grad_norm,
            bias_correction=None if bias_correction else False,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )


def _no_amsgrad(amsgrad: bool) -> None:
    if amsgrad:
        raise OptionValueError("PD306", "amsgrad does not exist in PopART", accepted="False")
