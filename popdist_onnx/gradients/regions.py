"""Averages over regions of images (`RoiAlign`).

Sampling is linear along each axis, so that an average is ``Y = D X A'``: ``D`` and ``A`` hold the
shares that each row and column of the image has in each row and column of the result. The gradient
is ``D' G A``, summed over the regions of an image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.gradients.registry import At, gradient

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


@gradient("RoiAlign", inputs=(0,))
def _roi_align(at: At) -> Tensor:
    if at.get("mode", "avg") != "avg":
        raise at.refused("only averages have a rule", 'set its mode to "avg"')
    if not at.x.static:
        raise at.refused("the image's lengths are unknown", "export the model with fixed shapes")
    tape, (n, c, height, width) = at.tape, at.x.shape
    regions, owner = at.input(1), at.input(2)
    left, top, right, bottom = (tape.Gather(regions, [place], axis=1) for place in range(4))
    down = _shares(at, top, bottom, at.get("output_height", 1), height)
    across = _shares(at, left, right, at.get("output_width", 1), width)
    rows = tape.Transpose(at.g @ tape.Unsqueeze(across, [1]), perm=[0, 2, 1, 3])
    owned = tape.Cast(tape.Equal(owner, np.arange(n)[:, None]), to=at.g.dtype)
    # [N, 1, regions, 1] by [height, regions, rows of the result]
    owned = tape.Unsqueeze(owned, [1, 3]) * tape.Transpose(down, perm=[2, 0, 1])
    image = tape.Reshape(owned, [n, height, -1]) @ tape.Reshape(rows, [-1, c * width])
    return tape.Transpose(tape.Reshape(image, [n, height, c, width]), perm=[0, 2, 1, 3])


def _shares(at: At, begin: Tensor, end: Tensor, count: int, length: int) -> Tensor:
    """The share of each element of an axis in each result, ``[regions, count, length]``."""
    tape, kind = at.tape, begin.dtype
    shifted = at.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale = at.get("spatial_scale", 1.0)
    begin = begin * scale - (0.5 if shifted else 0.0)
    size = end * scale - (0.5 if shifted else 0.0) - begin
    size = size if shifted else tape.Max(size, tape.scalar(1, kind))
    begin, size = (tape.Unsqueeze(one, [2, 3]) for one in (begin, size))
    results = tape.constant(np.arange(count, dtype=kind.numpy()).reshape(1, -1, 1, 1))
    samples = at.get("sampling_ratio", 0)
    if samples:
        numbers = tape.constant(np.arange(samples, dtype=kind.numpy()).reshape(1, 1, -1, 1))
        each: Tensor = tape.scalar(samples, kind)
    else:
        # As many as a result has elements, which differs by region.
        each = tape.Max(tape.Ceil(size / count), tape.scalar(1, kind))
        most = tape.ReduceMax(each, keepdims=0)
        zero, one = (tape.scalar(number, kind) for number in (0, 1))
        numbers = tape.Reshape(tape.Range(zero, most, one), [1, 1, -1, 1])
    place = begin + (results + (numbers + 0.5) / each) * (size / count)
    counted = tape.And(place >= -1.0, place <= float(length))
    counted = counted if samples else tape.And(counted, numbers < each)
    low, high = (tape.scalar(one, kind) for one in (0, length - 1))
    place = tape.Min(tape.Max(place, low), high)
    elements = tape.constant(np.arange(length, dtype=kind.numpy()))
    shares = tape.Relu(1.0 - tape.Abs(place - elements))
    shares = tape.Where(counted, shares, tape.scalar(0, kind))
    return tape.ReduceSum(shares / each, [2], keepdims=0)
