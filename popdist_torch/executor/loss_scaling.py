"""Automatic loss scaling: a factor of the loss that follows the gradients.

In half precision, small gradients underflow and large ones overflow. With automatic loss scaling,
the program's factor is multiplied by a power of two. The rule is PopART's with its default
settings: after each update the power is halved if more than one in 10^7 elements of the gradients
exceeds an eighth of the largest half-precision number; otherwise it is doubled, up to a scaling of
2^15. On an IPU numbers saturate; here, an update whose gradients overflowed is skipped.

The rule uses the sums over all replicas, which are equal on all instances, so all instances decide
alike. As published, only half-precision gradients count: a model without half-precision parameters
keeps its factor.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from popdist_torch.options.option_methods import stored_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_torch.optim.device import DeviceOptimizer

logger = logging.getLogger("popdist.torch")

_LIMIT = torch.finfo(torch.float16).max / 8
_SHARE = 1e-7
_LARGEST = float(2**15)


class LossScaling:
    """Adapts the factor of the loss, and decides whether an update is made.

    Args:
        optimizer: The optimizer, whose state holds the factor.
        trained: The parameters whose gradients it follows.
    """

    def __init__(self, optimizer: DeviceOptimizer, trained: Sequence[torch.nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._followed = [p for p in trained if p.dtype == torch.float16]
        if trained and not self._followed:
            stored_only("Training.setAutomaticLossScaling for models without half precision")

    def accepts(self) -> bool:
        """Whether the update can be made; adapts the factor to its gradients, already unscaled."""
        gradients = [p.grad for p in self._followed if p.grad is not None]
        if not gradients:
            return True
        scale = self._optimizer.loss_scaling
        limit = _LIMIT / scale
        large = sum(int((gradient.abs() > limit).sum()) for gradient in gradients)
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if not finite or large > _SHARE * sum(gradient.numel() for gradient in gradients):
            self._multiply(0.5)
        elif 2 * scale <= _LARGEST:
            self._multiply(2.0)
        if not finite:
            scale = self._optimizer.loss_scaling
            logger.info("gradients overflowed; no update, the loss scaling is now %g", scale)
        return finite

    def _multiply(self, factor: float) -> None:
        # The factor does not fall below one: an overflow at one is not caused by scaling.
        if factor > 1 or factor * self._optimizer.loss_scaling >= 1:
            self._optimizer.loss_scale_factor *= factor
