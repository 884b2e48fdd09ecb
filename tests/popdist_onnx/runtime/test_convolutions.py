"""Convolutions of a training graph, rewritten for this machine, against torch."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper

from popdist_onnx.graph.load import load
from popdist_onnx.runtime.convolutions import DOMAIN, block_length, choose_convolutions
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss

BATCH = 16
BLOCKS = sorted({None, block_length()}, key=str)


def graph_of(op_type, attributes, **variables):
    """A convolution, its output squared and summed: the loss; all gradients are outputs."""
    nodes = [
        helper.make_node(op_type, list(variables), ["y"], **attributes),
        helper.make_node("ReduceSumSquare", ["y"], ["loss"], keepdims=0),
    ]
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "one",
            [],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
            [onnx.numpy_helper.from_array(array, name) for name, array in variables.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    model = load(proto)
    set_loss(model, "loss")
    autodiff(model, outputs=list(variables))
    return model


def run(model):
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {}), strict=True))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "dilation", "pads"),
    [
        ((16, 32), (3, 3), 1, 1, (1, 1)),
        ((32, 16), (3, 3), 2, 1, (1, 1)),
        ((16, 16), (5, 3), 1, 1, (0, 2)),
        ((16, 16), (3, 3), 1, 2, (2, 2)),
        ((16, 16), (2, 2), 1, 1, (0, 0)),
        ((16, 16), (1, 1), 2, 1, (0, 0)),
        ((3, 16), (3, 3), 1, 1, (1, 1)),
        ((16, 5), (3, 3), 1, 1, (2, 2)),
    ],
)
def test_gradients_are_those_of_torch(block, channels, kernel, stride, dilation, pads):
    random = np.random.default_rng(0)
    inputs, outputs = channels
    x = random.normal(size=(BATCH, inputs, 9, 10)).astype(np.float32)
    w = random.normal(size=(outputs, inputs, *kernel)).astype(np.float32)
    b = random.normal(size=outputs).astype(np.float32)
    model = graph_of(
        "Conv",
        {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [*pads, *pads]},
        x=x,
        w=w,
        b=b,
    )
    choose_convolutions(model, block)
    found = run(model)

    tensors = [torch.from_numpy(array).requires_grad_() for array in (x, w, b)]
    y = torch.nn.functional.conv2d(*tensors, stride=stride, padding=pads, dilation=dilation)
    loss = y.square().sum()
    loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, tensor in zip("xwb", tensors, strict=True):
        expected = tensor.grad.numpy()
        got = found[f"Gradient___{name}"]
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    ("lengths", "kernel", "pads", "stride"),
    [
        ((64,), (31,), (15,), 1),
        ((64,), (25,), (12,), 2),
        ((6, 7, 8), (3, 3, 3), (1, 1, 1), 1),
        ((6, 7, 8), (3, 3, 3), (0, 1, 2), 2),
        ((4, 4, 4), (1, 3, 1), (0, 1, 0), 1),
    ],
)
def test_gradients_are_those_of_torch_in_any_rank(block, lengths, kernel, pads, stride):
    random, rank = np.random.default_rng(0), len(lengths)
    x = random.normal(size=(BATCH, 16, *lengths)).astype(np.float32)
    w = random.normal(size=(16, 16, *kernel)).astype(np.float32)
    model = graph_of("Conv", {"strides": [stride] * rank, "pads": [*pads, *pads]}, x=x, w=w)
    choose_convolutions(model, block)
    found = run(model)
    tensors = [torch.from_numpy(array).double().requires_grad_() for array in (x, w)]
    convolution = getattr(torch.nn.functional, f"conv{rank}d")
    convolution(*tensors, stride=stride, padding=pads).square().sum().backward()
    for name, tensor in zip("xw", tensors, strict=True):
        expected = tensor.grad.numpy()
        got = found[f"Gradient___{name}"]
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("block", BLOCKS)
def test_transposed_convolutions_too(block):
    random = np.random.default_rng(1)
    x = random.normal(size=(BATCH, 32, 6, 7)).astype(np.float32)
    w = random.normal(size=(32, 16, 3, 3)).astype(np.float32)
    model = graph_of("ConvTranspose", {"pads": [1, 0, 1, 0]}, x=x, w=w)
    choose_convolutions(model, block)
    found = run(model)

    tensors = [torch.from_numpy(array).requires_grad_() for array in (x, w)]
    torch.nn.functional.conv_transpose2d(*tensors, padding=(1, 0)).square().sum().backward()
    for name, tensor in zip("xw", tensors, strict=True):
        expected = tensor.grad.numpy()
        got = found[f"Gradient___{name}"]
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pads"),
    [
        ((3, 3), 1, 1, (1, 1, 1, 1)),
        ((3, 3), 2, 1, (1, 1, 1, 1)),
        ((3, 3), 2, 1, (0, 1, 2, 0)),
        ((3, 2), 1, 2, (2, 1, 2, 1)),
        ((1, 1), 2, 1, (0, 0, 0, 0)),
        ((3, 4), 1, 1, (0, 0, 0, 0)),
    ],
)
def test_convolutions_of_small_maps_are_products(kernel, stride, dilation, pads):
    random = np.random.default_rng(2)
    x = random.normal(size=(3, 5, 3, 4)).astype(np.float32)
    w = random.normal(size=(96, 5, *kernel)).astype(np.float32)
    b = random.normal(size=96).astype(np.float32)
    settings = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads}
    model = graph_of("Conv", settings, x=x, w=w, b=b)
    choose_convolutions(model, None)
    assert not [node for node in model.graph if node.op_type.startswith("Conv")]
    found = run(model)

    tensors = [torch.from_numpy(array).double().requires_grad_() for array in (x, w, b)]
    padded = torch.nn.functional.pad(tensors[0], (pads[1], pads[3], pads[0], pads[2]))
    y = torch.nn.functional.conv2d(padded, *tensors[1:], stride=stride, dilation=dilation)
    y.square().sum().backward()
    for name, tensor in zip("xwb", tensors, strict=True):
        expected = tensor.grad.numpy()
        got = found[f"Gradient___{name}"]
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("rank", [1, 3])
def test_products_of_small_maps_in_any_rank(rank):
    random = np.random.default_rng(3)
    x = random.normal(size=(2, 4, *[3] * rank)).astype(np.float32)
    w = random.normal(size=(256, 4, *[2] * rank)).astype(np.float32)
    model = graph_of("Conv", {"pads": [1] * rank + [0] * rank}, x=x, w=w)
    choose_convolutions(model, None)
    assert "Conv" not in {node.op_type for node in model.graph}
    found = run(model)
    tensors = [torch.from_numpy(array).double().requires_grad_() for array in (x, w)]
    padded = torch.nn.functional.pad(tensors[0], [1, 0] * rank)
    getattr(torch.nn.functional, f"conv{rank}d")(padded, tensors[1]).square().sum().backward()
    for name, tensor in zip("xw", tensors, strict=True):
        expected = tensor.grad.numpy()
        got = found[f"Gradient___{name}"]
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("extra", [(0, 0), (1, 0)])
def test_transposed_convolutions_of_small_maps_are_products(extra):
    random = np.random.default_rng(4)
    x = random.normal(size=(2, 160, 3, 2)).astype(np.float32)
    w = random.normal(size=(160, 6, 3, 3)).astype(np.float32)
    b = random.normal(size=6).astype(np.float32)
    settings = {"pads": [1, 1, 1, 1], "strides": [2, 2], "output_padding": extra}
    model = graph_of("ConvTranspose", settings, x=x, w=w, b=b)
    choose_convolutions(model, None)
    assert not [node for node in model.graph if node.op_type.startswith("Conv")]
    found = run(model)

    tensors = [torch.from_numpy(array).double().requires_grad_() for array in (x, w, b)]
    made = torch.nn.functional.conv_transpose2d(*tensors, padding=1, stride=2, output_padding=extra)
    made.square().sum().backward()
    for name, tensor in zip("xwb", tensors, strict=True):
        expected = tensor.grad.numpy()
        got = found[f"Gradient___{name}"]
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max(), err_msg=name)


@pytest.mark.skipif(block_length() is None, reason="no blocked kernels on this machine")
def test_all_three_convolutions_of_a_layer_are_blocked():
    x, w = np.ones((BATCH, 16, 8, 8), np.float32), np.ones((16, 16, 3, 3), np.float32)
    model = graph_of("Conv", {"pads": [1] * 4}, x=x, w=w)
    choose_convolutions(model, block_length())
    convolutions = [node for node in model.graph if node.op_type.startswith("Conv")]
    assert [node.domain for node in convolutions] == [DOMAIN] * 3
