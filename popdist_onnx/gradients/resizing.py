"""Resize: along each axis a product with a constant matrix, whose transpose is the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph.load import WORKING_OPSET

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor


_SETTINGS = (
    "mode",
    "coordinate_transformation_mode",
    "nearest_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "extrapolation_value",
)


@gradient("Resize", inputs=(0,))
def _resize(at: At) -> Tensor:
    x, y, tape = at.x, at.y, at.tape
    if not (x.static and y.static):
        raise at.refused("its shapes are not known", "export the model with fixed shapes")
    g = at.g
    for axis, (length, made) in enumerate(zip(x.shape, y.shape, strict=True)):
        if length == made and not _crops(at):
            continue
        matrix = _matrix(at, axis, length)
        last = x.rank - 1
        order = [*(one for one in range(x.rank) if one != axis), axis]
        moved = g if axis == last else tape.Transpose(g, perm=order)
        moved = moved @ tape.constant(matrix)
        g = (
            moved
            if axis == last
            else tape.Transpose(moved, perm=[int(one) for one in np.argsort(order)])
        )
    return g


def _crops(at: At) -> bool:
    return str(at.get("coordinate_transformation_mode", "half_pixel")) == "tf_crop_and_resize"


def _matrix(at: At, axis: int, length: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Column i says how output i is made of the inputs of one axis.

    The operator itself is run along this axis, on every unit vector.
    """
    import onnx
    import onnxruntime

    if at.get("antialias", 0):
        raise at.refused("antialias", "resize without antialias")
    kind, number, region = _along(at, axis)
    shape = [1, 1, length, length]
    if kind == "scales":
        wanted = np.asarray([1, 1, 1, number], np.float32)
    else:
        wanted = np.asarray([1, 1, length, number], np.int64)
    roi = np.asarray([0, 0, 0, region[0], 1, 1, 1, region[1]], np.float32)
    names = ["x", "roi", kind] if kind == "scales" else ["x", "roi", "", kind]
    attributes = {name: at.get(name, None) for name in _SETTINGS if name in at.node.attributes}
    # Nothing outside may count: what is extrapolated depends on no input.
    attributes.pop("extrapolation_value", None)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Resize", names, ["y"], **attributes)],
        "axis",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(roi, "roi"), onnx.numpy_helper.from_array(wanted, kind)],
    )
    opsets = [onnx.helper.make_opsetid("", WORKING_OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (made,) = session.run(None, {"x": np.eye(length, dtype=np.float32).reshape(shape)})
    return np.ascontiguousarray(made[0, 0].T).astype(at.x.dtype.numpy())


def _along(at: At, axis: int) -> tuple[str, float, tuple[float, float]]:
    """What the node says of an axis: its scale or length, and the region that is cropped."""
    axes = [int(one) % at.x.rank for one in at.get("axes", range(at.x.rank))]
    if axis not in axes:
        return "scales", 1.0, (0.0, 1.0)
    index, region = axes.index(axis), (0.0, 1.0)
    if _crops(at):
        roi = at.known(1)
        region = float(roi[index]), float(roi[index + len(axes)])
    scales = at.optional(2)
    if scales is not None and scales.dims != (0,):
        return "scales", float(at.known(2)[index]), region
    return "sizes", int(at.y.shape[axis]), region
