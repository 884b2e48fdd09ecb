"""Resize: along each axis a product with a constant matrix, whose transpose is the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph import resampling
from popdist_onnx.graph.resize import axes_of_resize

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


@gradient("Resize", inputs=(0,))
def _resize(at: At) -> Tensor:
    x, tape = at.x, at.tape
    axes = axes_of_resize(at.node, x.shape) if x.static else None
    if axes is None:
        raise at.refused("its shapes are not known", "export the model with fixed shapes")
    attributes = {name: one.value for name, one in at.node.attributes.items()}
    sampling = resampling.settings(attributes)
    g, last = at.g, x.rank - 1
    for number, axis in enumerate(axes):
        if axis.untouched:
            continue
        matrix, _ = resampling.weights(sampling, axis)
        order = [*(one for one in range(x.rank) if one != number), number]
        moved = g if number == last else tape.Transpose(g, perm=order)
        moved = moved @ tape.constant(matrix.astype(x.dtype.numpy()))
        back = [int(one) for one in np.argsort(order)]
        g = moved if number == last else tape.Transpose(moved, perm=back)
    return g
