"""Dropout: what was dropped passes no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, gradient

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


@gradient("Dropout", inputs=(0,))
def _dropout(at: At) -> Tensor:
    """Training sessions replace Dropout by a mask before this; what is left here passes all."""
    mode = at.optional(2)
    training = None if mode is None else mode.constant
    if mode is None or (training is not None and not training.item()):
        return at.g
    raise at.refused(
        "it draws its own random numbers, which the backward half cannot see",
        "run transforms.randomness before autodiff; sessions do",
    )
