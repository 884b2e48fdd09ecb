"""The formula of every optimizer, found by its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.adam_update import adam
from popdist_onnx.optimizers.adaptive import Adaptive
from popdist_onnx.optimizers.adaptive_update import adaptive
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.optimizers.sgd_update import sgd
from popdist_onnx.optimizers.weight_update import Numbers, WeightUpdate

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.optimizers.coefficients import Coefficient


def write_update(
    numbers: Numbers, weight: ir.Value, gradient: ir.Value, clip: Coefficient | None
) -> None:
    """Writes the update of one weight.

    Args:
        numbers: The scalars of all updates, with their optimizer.
        weight: The weight.
        gradient: Its gradient, summed and exchanged.
        clip: What the gradient is multiplied by to clip it; None does not clip.

    Raises:
        TypeError: The optimizer has no formula.
        UpdateError: A state in the model does not fit.
    """
    match numbers.optimizer:
        case SGD() as optimizer:
            sgd(WeightUpdate(numbers, optimizer, weight, gradient, clip))
        case Adam() as optimizer:
            adam(WeightUpdate(numbers, optimizer, weight, gradient, clip))
        case Adaptive() as optimizer:
            adaptive(WeightUpdate(numbers, optimizer, weight, gradient, clip))
        case other:
            raise TypeError(f"{type(other).__name__} has no formula")
