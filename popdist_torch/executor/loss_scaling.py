"""The factor of the loss in backward passes: the program's, or one that follows the gradients.

Half precision has few exponents: small gradients vanish, large ones overflow. With automatic loss
scaling the program's factor is multiplied by another, a power of two, which grows until gradients
come close to what half precision can hold, and shrinks where they do. The rule is PopART's with its
default settings: after each update the factor is halved where more than one in 10^7 elements of the
gradients is above an eighth of the largest half-precision number; otherwise it is doubled, up to a
scaling of 2^15. Unlike on an IPU, where numbers saturate, an update whose gradients overflowed is
left out.

It looks at the sums over all replicas, which are equal on all instances, so all of them decide
alike. Gradients of other types have no say, as is published: a model without half-precision
parameters keeps its factor.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from popdist_torch.options.settings import stored_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_torch.optim.device import DeviceOptimizer

logger = logging.getLogger("popdist.torch")

_LIMIT = torch.finfo(torch.float16).max / 8
_SHARE = 1e-7
_LARGEST = float(2**15)


class LossScaling:
    """Scales losses, and decides whether an update is made.

    Args:
        optimizer: Whose scaling it is; keeps the automatic factor as part of its state.
        following: Parameters whose gradients the factor follows; none where it is not automatic.
    """

    def __init__(self, optimizer: DeviceOptimizer, following: Sequence[torch.nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._followed = [p for p in following if p.dtype == torch.float16]
        if following and not self._followed:
            stored_only("Training.setAutomaticLossScaling for models without half precision")

    @property
    def scale(self) -> float:
        """What losses of the next update are multiplied with."""
        return self._optimizer.loss_scaling

    def accepts(self) -> bool:
        """Looks at the gradients of an update, which have been divided by the scale.

        Returns:
            Whether it can be made.
        """
        gradients = [p.grad for p in self._followed if p.grad is not None]
        if not gradients:
            return True
        limit = _LIMIT / self.scale
        large = sum(int((gradient.abs() > limit).sum()) for gradient in gradients)
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if not finite or large > _SHARE * sum(gradient.numel() for gradient in gradients):
            self._multiply(0.5)
        elif 2 * self.scale <= _LARGEST:
            self._multiply(2.0)
        if not finite:
            logger.info("gradients overflowed; no update, the loss scaling is now %g", self.scale)
        return finite

    def _multiply(self, factor: float) -> None:
        # Below one nothing is gained: what overflows there is no matter of scaling.
        if factor > 1 or factor * self.scale >= 1:
            self._optimizer.loss_scale_factor *= factor
