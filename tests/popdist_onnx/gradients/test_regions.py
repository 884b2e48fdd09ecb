"""Grids, regions, limits and padding: gradients beside differences of ONNX Runtime, or torch."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from tests.popdist_onnx.gradients.harness import session

RANDOM = np.random.default_rng(2)
STEP = 1e-6

REGIONS = np.array([[0.3, 0.6, 6.2, 4.1], [2.2, 1.3, 3.1, 9.7], [-2.6, 1.2, 3.3, 4.4]])
IMAGES = RANDOM.standard_normal((2, 3, 5, 7))
OWNERS = np.array([1, 0, 1])

# Operator, opset, the tensor that is differentiated, others and attributes.
CASES = {
    "two samples": ("RoiAlign", 16, IMAGES, [REGIONS, OWNERS], {"sampling_ratio": 2}),
    "samples by length": ("RoiAlign", 16, IMAGES, [REGIONS, OWNERS], {"spatial_scale": 0.9}),
    "older regions": ("RoiAlign", 10, IMAGES, [REGIONS, OWNERS], {"sampling_ratio": 3}),
    "flat map": ("AffineGrid", 20, RANDOM.standard_normal((2, 2, 3)), [np.array([2, 1, 3, 4])], {}),
    "map in space, to the corners": (
        "AffineGrid",
        20,
        RANDOM.standard_normal((2, 3, 4)),
        [np.array([2, 1, 3, 4, 2])],
        {"align_corners": 1},
    ),
}


def model_of(name, dtype):
    op_type, opset, x, others, attributes = CASES[name]
    if op_type == "RoiAlign":
        attributes = {"output_height": 2, "output_width": 3, **attributes}
    names = ["x", *(f"operand{number}" for number in range(len(others)))]
    typed = [one.astype(dtype) if one.dtype.kind == "f" else one for one in others]
    # The loss weighs every element differently.
    nodes = [
        helper.make_node(op_type, names, ["y"], **attributes),
        helper.make_node("Sin", ["y"], ["curved"]),
        helper.make_node("ReduceSum", ["curved"], ["loss"], keepdims=0),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("loss", kind, [])],
        [numpy_helper.from_array(a, n) for n, a in zip(names[1:], typed, strict=True)],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), x.astype(dtype)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_slope_of_the_file(name):
    proto, x = model_of(name, np.float32)
    model = autodiff(set_loss(load(proto), "loss"), frozen=["operand0"], outputs=["x"])
    value, found = session(model).run(["loss", "Gradient___x"], {"x": x})
    judge, x = session(model_of(name, np.float64)[0]), x.astype(np.float64)
    assert value == pytest.approx(judge.run(None, {"x": x})[0], rel=1e-5)
    slopes = np.zeros(x.size)
    for place in range(x.size):
        step = np.zeros(x.size)
        step[place] = STEP
        up, down = (judge.run(None, {"x": x + sign * step.reshape(x.shape)})[0] for sign in (1, -1))
        slopes[place] = (up - down) / (2 * STEP)
    np.testing.assert_allclose(found, slopes.reshape(x.shape), atol=2e-5, rtol=1e-4)


def test_the_largest_of_a_region_has_no_gradient():
    proto, _ = model_of("two samples", np.float32)
    proto.graph.node[0].attribute.append(helper.make_attribute("mode", "max"))
    model = set_loss(load(proto), "loss")
    with pytest.raises(RuntimeError, match=r"RoiAlign.*only averages") as raised:
        autodiff(model, frozen=["operand0"], outputs=["x"])
    assert raised.value.code == "PD525"


X = RANDOM.standard_normal((3, 4)).astype(np.float32)

# Inputs of Clip besides x; None is left out.
LIMITS = {
    "both": (-0.3, 0.4),
    "lower": (-0.3, None),
    "upper": (None, 0.4),
    "crossed": (0.5, -0.2),
}


def found_by(nodes, values):
    """The gradients of ``y``, squared and summed, by the name of the input."""
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in values.items()
    ]
    more = [
        helper.make_node("Mul", ["y", "y"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
    ]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph([*nodes, *more], "g", infos, [loss])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model = autodiff(set_loss(load(proto), "loss"), outputs=list(values))
    names = [f"Gradient___{name}" for name in values]
    return dict(zip(values, session(model).run(names, values), strict=True))


@pytest.mark.parametrize("name", LIMITS)
def test_limits_that_a_network_computes_get_gradients(name):
    given = dict(zip(("low", "high"), LIMITS[name], strict=True))
    values = {"x": X, **{k: np.array(v, np.float32) for k, v in given.items() if v is not None}}
    names = ["x", *("" if given[key] is None else key for key in given)]
    found = found_by([helper.make_node("Clip", names, ["y"])], values)
    tensors = {
        k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in values.items()
    }
    limits = (tensors.get("low"), tensors.get("high"))
    (torch.clamp(tensors["x"], *limits) ** 2).sum().backward()
    for key, tensor in tensors.items():
        wanted = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()
        np.testing.assert_allclose(found[key], wanted, rtol=1e-5, atol=1e-6, err_msg=key)


def test_the_value_of_a_padding_gets_a_gradient():
    values = {"x": X, "value": np.array(0.7, np.float32)}
    pads = helper.make_node("Constant", [], ["pads"], value_ints=[1, -1, 0, 2])
    found = found_by([pads, helper.make_node("Pad", ["x", "pads", "value"], ["y"])], values)
    np.testing.assert_allclose(found["x"][:, 1:], 2 * X[:, 1:], rtol=1e-5)
    np.testing.assert_array_equal(found["x"][:, 0], 0)
    # A row of five and two columns of three elements.
    assert found["value"] == pytest.approx(2 * 0.7 * (5 + 6), rel=1e-5)
