"""The CTC loss: its gradient needs both recursions, which stand beside its lowering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.lowering.ctc import ctc_gradient
from popdist_onnx.lowering.registry import DOMAIN, Operation

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


@gradient("Ctc", domain=DOMAIN, inputs=(0,))
def _ctc(at: At) -> Tensor:
    """How likely each label is at each step, given the targets, with a minus sign."""
    return ctc_gradient(Operation(at.tape, at.node), at.g)
