"""What PopTorch's optimizers take beyond torch's: loss scaling, clipping, accumulator types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_torch.errors import OptimizerError
from popdist_torch.options.effects import stored_only

if TYPE_CHECKING:
    import torch


class Scaled:
    """Extra settings of an optimizer, kept as its attributes.

    A change of one reaches the device with the next ``setOptimizer``.

    Attributes:
        loss_scaling: Factor of the loss in backward passes; gradients are divided by it before
            they are used.
        max_grad_norm: Largest norm of all averaged gradients together; None does not clip.
    """

    loss_scaling: float
    max_grad_norm: float | None

    def _set_extras(
        self,
        loss_scaling: float | None,
        max_grad_norm: float | None,
        **accumulator_types: torch.dtype | bool | float | None,
    ) -> None:
        """Checks and keeps the extra settings.

        Args:
            loss_scaling: See the class; None for 1.
            max_grad_norm: See the class.
            **accumulator_types: What only an IPU obeys; stored under these names.

        Raises:
            OptimizerError: A setting is not positive.
        """
        scaling = 1.0 if loss_scaling is None else loss_scaling
        self.loss_scaling = _positive("loss_scaling", scaling)
        if max_grad_norm is not None:
            max_grad_norm = _positive("max_grad_norm", max_grad_norm)
        self.max_grad_norm = max_grad_norm
        for name, value in accumulator_types.items():
            if value is not None:
                stored_only(f"{type(self).__name__}({name}=...)")
            setattr(self, name, value)


def _positive(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise OptimizerError("PD306", f"{name} must be positive", value=value)
    return float(value)
