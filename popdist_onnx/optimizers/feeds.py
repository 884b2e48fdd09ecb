"""What a session feeds into the inputs that carry an optimizer's non-constant numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.optimizers.scalars import CLIP_SCALING, LOSS_SCALING_INPUT, owner

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Array
    from popdist_onnx.optimizers.optimizer import Optimizer


def scalar_feed(optimizer: Optimizer, value: ir.Value, divisor: float) -> Array | None:
    """The present content of one input.

    Args:
        optimizer: The optimizer whose settings count.
        value: An input of a graph with this optimizer's updates.
        divisor: The number of micro-batches that a gradient is the mean of (1 with Sum).

    Returns:
        An array without dimensions; None where the input carries no number of the optimizer.
    """
    name = str(value.name)
    dtype = np.float32 if value.dtype is None else value.dtype.numpy()
    if name.startswith(LOSS_SCALING_INPUT):
        return np.asarray(optimizer.getLossScalingVal(), dtype)
    if (parts := owner(name)) is None:
        return None
    prefix, weight = parts
    by_prefix = {scalar.prefix: scalar for scalar in (*optimizer.scalars(), CLIP_SCALING)}
    if prefix not in by_prefix:
        return None
    return np.asarray(optimizer.scalar(by_prefix[prefix], weight, divisor).number, dtype)
