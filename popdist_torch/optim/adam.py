"""Adam and AdamW; PopART's formulas are torch's, up to rounding, and clipping is PopART's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptionValueError
from popdist_torch.optim.scaled import ADAM_STATE, MOMENT_TYPES, Scaled, clip_factor

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from popdist_torch.optim.scaled import ClippingExtras


class _Clipping(Scaled):
    """Limits gradients before a step, where PopART does.

    ``max_grad_norm`` limits what feeds the moments: the averaged gradient, with weight decay where
    that is part of the gradient (`_decay_in_gradient`).
    """

    acting = ("loss_scaling", "max_grad_norm")
    moments = ADAM_STATE
    _decay_in_gradient = False

    def _set_extras(self, *args: Any, **kwargs: Any) -> None:
        super()._set_extras(*args, **kwargs)
        self._clip_before_steps()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._clip_before_steps()

    def _clip_before_steps(self) -> None:
        # Copies and loaded optimizers share the hooks of the one that they were made from.
        if _clip not in self._optimizer_step_pre_hooks.values():
            self.register_step_pre_hook(_clip)

    @torch.no_grad()
    def clip(self) -> None:
        """Limits the gradients that the next step reads."""
        if self.max_grad_norm is None:
            return
        found = [
            (parameter, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        decays = [self._decay(group) for _, group in found]
        fed = [
            p.grad.add(p, alpha=decay) if decay else p.grad
            for (p, _), decay in zip(found, decays, strict=True)
        ]
        factor = clip_factor(self.max_grad_norm, fed)
        for (parameter, _), decay in zip(found, decays, strict=True):
            parameter.grad.mul_(factor)
            if decay:  # the step will add all of it
                parameter.grad.add_(parameter * (factor - 1), alpha=decay)

    def _decay(self, group: dict[str, Any]) -> float:
        if not self._decay_in_gradient:
            return 0.0
        return float(-group["weight_decay"] if group["maximize"] else group["weight_decay"])


class Adam(_Clipping, torch.optim.Adam):
    """Adam, with weight decay added to the gradient.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
        weight_decay: Weight decay.
        amsgrad: False.
        maximize: Whether to climb.
        foreach: As for torch.
        fused: As for torch.
        **extras: ``loss_scaling``, the factor of the loss in backward passes; ``max_grad_norm``,
            the largest norm of all averaged and decayed gradients together; and, stored,
            ``accum_type``, ``first_order_momentum_accum_type``,
            ``second_order_momentum_accum_type``.

    Raises:
        OptionValueError: ``amsgrad`` was asked for.
    """

    only_stored = MOMENT_TYPES
    _decay_in_gradient = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        **extras: Unpack[ClippingExtras],
    ) -> None:
        _no_amsgrad(amsgrad)
        settings: Any = {"maximize": maximize, "foreach": foreach, "fused": fused}
        super().__init__(params, lr, betas, eps, weight_decay, **settings)
        self._set_extras(**extras)


class AdamW(_Clipping, torch.optim.AdamW):
    """Adam, with weight decay apart from the gradient.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
        weight_decay: Weight decay, multiplied by the learning rate.
        amsgrad: False.
        maximize: Whether to climb.
        foreach: As for torch.
        fused: As for torch.
        bias_correction: Stored; moments are corrected either way, as in PopTorch since SDK 2.6.
        **extras: As for `Adam`; ``max_grad_norm`` limits the gradients without decay.

    Raises:
        OptionValueError: ``amsgrad`` was asked for.
    """

    only_stored = (*MOMENT_TYPES, "bias_correction")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        bias_correction: bool = True,
        **extras: Unpack[ClippingExtras],
    ) -> None:
        _no_amsgrad(amsgrad)
        settings: Any = {"maximize": maximize, "foreach": foreach, "fused": fused}
        super().__init__(params, lr, betas, eps, weight_decay, **settings)
        correction = None if bias_correction else False
        self._set_extras(**extras, bias_correction=correction)


def _clip(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    optimizer.clip()


def _no_amsgrad(amsgrad: bool) -> None:
    if amsgrad:
        raise OptionValueError("PD306", "amsgrad does not exist in PopART", accepted="False")
