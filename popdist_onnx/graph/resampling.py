"""Resize as linear algebra: along each axis, outputs are weighted sums of inputs.

Source: ONNX's text of Resize, opset 18 and newer; where the text leaves the length of an axis open
that scales do not divide evenly, the length is ``scale * length`` before it is rounded down, as in
ONNX's reference evaluator.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.values import Array

logger = logging.getLogger("popdist.onnx")


@dataclass(frozen=True)
class Sampling:
    """The attributes of a Resize.

    Attributes:
        mode: ``nearest``, ``linear`` or ``cubic``.
        coordinates: The rule from a coordinate of the output to one of the input.
        nearest: The rounding of a coordinate between two elements; ``pytorch`` is PopART's name for
            the elements that ``torch.nn.functional.interpolate`` takes: coordinates begin at 0, are
            computed in single precision (3 / 0.6 is 5 there) and rounded down.
        cubic: The coefficient of cubic weights.
        exclude_outside: Whether elements outside have no weight, instead of the value at the edge.
        antialias: Whether the weights are as wide as the region of one output.
    """

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis of a Resize.

    Attributes:
        length: Elements of the input.
        made: Elements of the output.
        scale: How many outputs stand for one input.
        region: The part that is cropped, from 0 to 1.
    """

    length: int
    made: int
    scale: float
    region: tuple[float, float] = (0.0, 1.0)

    @property
    def untouched(self) -> bool:
        """Whether the axis stays as it is."""
        return self.length == self.made and self.scale == 1.0 and self.region == (0.0, 1.0)


def weights(sampling: Sampling, axis: Axis) -> tuple[Array, Array]:
    """A float64 matrix ``[made, length]``, and which outputs lie outside of a cropped region."""
    places = _places(sampling, axis)
    outside = np.zeros(axis.made, bool)
    if sampling.coordinates == "tf_crop_and_resize":
        outside = (places < 0) | (places > axis.length - 1)
    # An element at a whole coordinate is the right one of its two neighbours.
    left = np.ceil(places) - 1
    ratio = places - left
    offsets, parts = _parts(sampling, ratio, axis.scale)
    indices = left.astype(np.int64)[:, None] + offsets
    if sampling.exclude_outside:
        parts = np.where((indices < 0) | (indices >= axis.length), 0.0, parts)
        parts = parts / parts.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.made, axis.length))
    rows = np.broadcast_to(np.arange(axis.made)[:, None], indices.shape)
    np.add.at(matrix, (rows, np.clip(indices, 0, axis.length - 1)), parts)
    matrix[outside] = 0
    return matrix, outside


def _places(sampling: Sampling, axis: Axis) -> Array:
    """The coordinate in the input of each output."""
    found: Array
    x = np.arange(axis.made, dtype=np.float64)
    whole = axis.scale * axis.length
    last = axis.length - 1
    if sampling.mode == "nearest" and sampling.nearest == "pytorch":
        step = np.float32(1) / np.float32(axis.scale)
        found = np.minimum(np.floor(x.astype(np.float32) * step), last).astype(np.float64)
        return found
    match sampling.coordinates:
        case "align_corners":
            found = x * last / (whole - 1) if whole != 1 else x * 0.0
        case "asymmetric" if sampling.mode == "nearest":
            # As in torch and ONNX Runtime: 3 / 0.6 is a whole number in single precision only.
            found = (x.astype(np.float32) / np.float32(axis.scale)).astype(np.float64)
        case "asymmetric":
            found = x / axis.scale
        case "tf_half_pixel_for_nn":
            found = (x + 0.5) / axis.scale
        case "tf_crop_and_resize":
            start, end = axis.region
            width = (end - start) * last
            found = start * last + (x * width / (whole - 1) if whole != 1 else x * 0.0 + width / 2)
        case "pytorch_half_pixel" if whole == 1:
            found = x * 0.0 - 0.5
        case "half_pixel_symmetric":
            shift = axis.length / 2 * (1 - axis.made / whole)
            found = shift + (x + 0.5) / axis.scale - 0.5
        case _:
            found = (x + 0.5) / axis.scale - 0.5
    return found


def _parts(sampling: Sampling, ratio: Array, scale: float) -> tuple[Array, Array]:
    """The weight of each neighbour, by the distance from the left neighbour (0 to 1]."""
    if sampling.mode == "nearest":
        takes_right = {
            "round_prefer_floor": ratio > 0.5,  # noqa: PLR2004 - the middle of two elements
            "round_prefer_ceil": ratio >= 0.5,  # noqa: PLR2004 - the middle of two elements
            "ceil": ratio > 0,
        }.get(sampling.nearest, ratio >= 1)
        right = np.where(takes_right, 1.0, 0.0)
        return np.arange(2), np.stack([1 - right, right], axis=1)
    width = 1 if sampling.mode == "linear" else 2
    shrink = min(scale, 1.0) if sampling.antialias else 1.0
    first = int(np.floor(-width / shrink) + 1)
    offsets = np.arange(first, 2 - first)
    distance = np.abs(offsets - ratio[:, None]) * shrink
    parts = _linear(distance) if width == 1 else _cubic(distance, sampling.cubic)
    if sampling.antialias:
        parts = parts / parts.sum(axis=1, keepdims=True)
    return offsets, parts


def _linear(distance: Array) -> Array:
    return np.clip(1 - distance, 0, 1)


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))  # noqa: PLR2004 - reach


def kernel_agrees(sampling: Sampling, axis: Axis) -> bool:
    """Whether ONNX Runtime's kernel gives the text's result for every unit vector."""
    import onnxruntime
    from onnx import helper

    scaled = np.float32(axis.scale) == axis.scale or axis.made != axis.length * axis.scale
    names = ["x", "", "by"] if scaled else ["x", "", "", "by"]
    by = np.asarray([1, 1, 1, axis.scale], np.float32)
    if not scaled:
        by = np.asarray([1, 1, axis.length, axis.made], np.int64)
    node = helper.make_node(
        "Resize",
        names,
        ["y"],
        mode=sampling.mode,
        coordinate_transformation_mode=sampling.coordinates,
        nearest_mode=sampling.nearest,
        cubic_coeff_a=sampling.cubic,
        exclude_outside=int(sampling.exclude_outside),
        antialias=int(sampling.antialias),
    )
    shape = [1, 1, axis.length, axis.length]
    graph = helper.make_graph(
        [node],
        "axis",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(by, "by")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    unit = np.eye(axis.length, dtype=np.float32).reshape(shape)
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        (found,) = session.run(None, {"x": unit})
    # ONNX Runtime refuses with errors of many types.
    except Exception:
        logger.debug("ONNX Runtime refuses %s of %s", sampling, axis, exc_info=True)
        return False
    matrix, _ = weights(sampling, axis)
    return bool(found[0, 0].T.shape == matrix.shape) and bool(
        np.allclose(found[0, 0].T, matrix, atol=1e-5)
    )


def made_lengths(lengths: Sequence[int], scales: Sequence[float]) -> list[int]:
    """Output lengths of scaled axes, rounded down; products have single precision, as scales do.

    So ONNX's inference and ONNX Runtime compute them: 6 elements and 5 / 6 make 5, as in torch.
    """
    pairs = zip(scales, lengths, strict=True)
    return [int(np.float32(scale) * np.float32(length)) for scale, length in pairs]


def settings(attributes: dict[str, Any]) -> Sampling:
    """The `Sampling` of a node's attributes."""
    return Sampling(
        mode=attributes.get("mode", "nearest"),
        coordinates=attributes.get("coordinate_transformation_mode", "half_pixel"),
        nearest=attributes.get("nearest_mode", "round_prefer_floor"),
        cubic=attributes.get("cubic_coeff_a", -0.75),
        exclude_outside=bool(attributes.get("exclude_outside", 0)),
        antialias=bool(attributes.get("antialias", 0)),
    )
