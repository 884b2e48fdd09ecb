"""Operators that sample images: at the places of a grid, over regions, and to another size.

In averages over regions, sampling is linear along each axis, so that an average is ``Y = D X A'``:
``D`` and ``A`` hold the shares that each row and column of the image has in each row and column of
the result. The gradient is ``D' G A``, summed over the regions of an image. `Resize` is a product
with a constant matrix along each axis, whose transpose is the gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph import resampling, shape_ops
from popdist_onnx.graph.resize import axes_of_resize

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.graph.values import Array


_IMAGES = 4
_LINEAR = ("bilinear", "linear")


class _Axis(NamedTuple):
    """Places along one axis of the images, ``[N, 1, places]``.

    Attributes:
        length: Of the axis.
        place: In elements, within the image where its border is repeated.
        slope: How far a place moves with its number in the grid.
    """

    length: int
    place: Tensor
    slope: Tensor


@gradient("GridSample")
def _grid_sample(at: At) -> list[Tensor | None]:
    """Each place gets and gives its share of the elements around it."""
    mode, padding = at.get("mode", "linear"), at.get("padding_mode", "zeros")
    x, grid = at.x, at.input(1)
    if x.rank != _IMAGES or mode not in (*_LINEAR, "nearest") or padding == "reflection":
        raise at.refused(
            f"mode {mode} with padding {padding} of {x.rank} dimensions has no rule",
            "sample images by linear or nearest places, with padding zeros or border",
        )
    if not (x.static and grid.static):
        raise at.refused("lengths are unknown", "export the model with fixed shapes")
    tape, (n, c, height, width) = at.tape, x.shape
    count = int(np.prod(grid.shape[1:3]))
    across, down = (
        _axis(at, tape.Gather(grid, np.asarray(place), axis=3), length, [n, 1, count])
        for place, length in ((0, width), (1, height))
    )
    flat, g = tape.Reshape(x, [n, c, -1]), tape.Reshape(at.g, [n, c, count])
    image = shape_ops.zeros(flat)
    by_across: Tensor | None = None
    by_down: Tensor | None = None
    for column, share_across, sign_across in _around(at, across, mode):
        for row, share_down, sign_down in _around(at, down, mode):
            index, inside = _index(at, (down, row), (across, column))
            places = tape.Expand(index, [n, c, count])
            share = share_across * share_down * inside
            image = tape.ScatterElements(image, places, g * share, axis=2, reduction="add")
            if mode == "nearest" or not at.wants(1):
                continue
            value = tape.ReduceSum(
                tape.GatherElements(flat, places, axis=2) * g * inside, [1], keepdims=1
            )
            one, other = value * share_down * sign_across, value * share_across * sign_down
            by_across = one if by_across is None else by_across + one
            by_down = other if by_down is None else by_down + other
    moved = None
    if by_across is not None and by_down is not None:
        both = [
            tape.Reshape(by * axis.slope, [*grid.shape[:3], 1])
            for by, axis in ((by_across, across), (by_down, down))
        ]
        moved = tape.Concat(*both, axis=3)
    elif at.wants(1):
        moved = shape_ops.zeros(grid)
    return [tape.Reshape(image, list(x.shape)) if at.wants(0) else None, moved]


def _axis(at: At, numbers: Tensor, length: int, shape: list[int]) -> _Axis:
    tape, corners = at.tape, at.get("align_corners", 0)
    numbers = tape.Reshape(numbers, shape)
    factor = (length - 1) / 2 if corners else length / 2
    place = (numbers + 1.0) * factor
    place = place if corners else place - 0.5
    slope = tape.scalar(factor, numbers.dtype)
    if at.get("padding_mode", "zeros") == "border":
        within = tape.And(place > 0.0, place < float(length - 1))
        slope = tape.Where(within, slope, tape.scalar(0, numbers.dtype))
        low, high = (tape.scalar(one, numbers.dtype) for one in (0, length - 1))
        place = tape.Min(tape.Max(place, low), high)
    return _Axis(length, place, slope)


def _around(at: At, axis: _Axis, mode: str) -> list[tuple[Tensor, Tensor, float]]:
    """The elements around places: their numbers, shares, and how shares change with the place."""
    tape = at.tape
    one = tape.scalar(1, axis.place.dtype)
    if mode == "nearest":
        return [(tape.Round(axis.place), one, 0.0)]
    first = tape.Floor(axis.place)
    rest = axis.place - first
    return [(first, one - rest, -1.0), (first + 1.0, rest, 1.0)]


def _index(
    at: At, down: tuple[_Axis, Tensor], across: tuple[_Axis, Tensor]
) -> tuple[Tensor, Tensor]:
    """The element's number in the image, and one where it is inside, else zero."""
    tape, inside, numbers = at.tape, [], []
    for axis, number in (down, across):
        low, high = (tape.scalar(one, number.dtype) for one in (0, axis.length - 1))
        inside.append(tape.And(number >= low, number <= high))
        numbers.append(tape.Cast(tape.Min(tape.Max(number, low), high), to=ir.DataType.INT64))
    index = numbers[0] * across[0].length + numbers[1]
    return index, tape.Cast(tape.And(*inside), to=down[1].dtype)


@gradient("AffineGrid", inputs=(0,))
def _affine_grid(at: At) -> Tensor:
    """Each place of the grid is the map times (x, y, 1), so the map gets places times gradients."""
    lengths = [int(one) for one in at.known(1)][2:]
    corners = at.get("align_corners", 0)
    along = [_coordinates(one, corners) for one in reversed(lengths)]
    mesh = np.meshgrid(*reversed(along), indexing="ij")
    places = np.stack([*reversed(mesh), np.ones(lengths)], axis=-1).reshape(-1, len(lengths) + 1)
    tape = at.tape
    g = tape.Reshape(at.g, [0, places.shape[0], len(lengths)])
    return tape.Transpose(g, perm=[0, 2, 1]) @ tape.constant(places.astype(at.g.dtype.numpy()))


def _coordinates(length: int, corners: int) -> Array:
    """The places along one axis, from -1 to 1."""
    numbers = np.arange(length)
    return numbers * (2 / max(length - 1, 1)) - 1 if corners else (2 * numbers + 1) / length - 1


# Averages over regions.


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


# Resize.


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
