"""LSTM, several convolutions and shaped dropout, against torch."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.builder.builder import Builder
from popdist_onnx.errors import NotOnHostError, popart_exception
from popdist_onnx.graph.load import load
from popdist_onnx.lowering import lower
from popdist_onnx.lowering.apply import require_one_local_replica
from popdist_onnx.transforms.randomness import random_inputs
from tests.popdist_onnx.graphcore import evaluate, run


@settings(deadline=None, max_examples=10)
@given(
    steps=st.integers(1, 4),
    batch=st.integers(1, 3),
    features=st.integers(1, 3),
    hidden=st.integers(1, 4),
    biased=st.booleans(),
    started=st.booleans(),
    full=st.booleans(),
)
def test_lstm(steps, batch, features, hidden, biased, started, full):
    rng = np.random.default_rng(0)

    def made(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    x, weights = made(steps, batch, features), made(4, features + hidden, hidden)
    biases, state = made(4, hidden), made(2, batch, hidden)
    arrays = [x, weights]
    if biased or started:
        arrays.append(biases if biased else np.zeros_like(biases))
    if started:
        arrays.append(state)
    sequence, cell = evaluate("lstm", arrays, outputFullSequence=int(full))
    reference = torch.nn.LSTM(features, hidden)
    # Ours are forget, input, candidate, output; torch's input, forget, candidate, output.
    order = [1, 0, 2, 3]
    turned = torch.tensor(weights[order]).transpose(1, 2).reshape(4 * hidden, -1)
    with torch.no_grad():
        reference.weight_ih_l0.copy_(turned[:, :features])
        reference.weight_hh_l0.copy_(turned[:, features:])
        reference.bias_ih_l0.copy_(torch.tensor((biases * biased)[order]).reshape(-1))
        reference.bias_hh_l0.zero_()
        begin = tuple(torch.tensor(one * started)[None] for one in state)
        expected, (_, last) = reference(torch.tensor(x), begin)
    expected = expected if full else expected[-1]
    np.testing.assert_allclose(sequence, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cell, last[0], rtol=1e-4, atol=1e-5)


def test_lstm_refuses_weights_of_another_layout():
    arrays = [np.ones((2, 1, 3), np.float32), np.ones((1, 16, 3), np.float32)]
    with pytest.raises(popart_exception, match="weights of shape"):
        evaluate("lstm", arrays)


def test_multiconv_is_one_convolution_after_another():
    rng = np.random.default_rng(0)
    images = [rng.standard_normal((2, 3, 6, 6)), rng.standard_normal((1, 2, 8))]
    kernels = [rng.standard_normal((4, 3, 3, 3)), rng.standard_normal((5, 2, 2))]
    bias = rng.standard_normal(5)
    arrays = [one.astype(np.float32) for one in (*images, *kernels, bias)]
    builder = Builder()
    x, y, w, v, b = ids = [builder.addInputTensor("FLOAT", one.shape) for one in arrays]
    outputs = builder.aiGraphcore.multiconv(
        [[x, w], [y, v, b]],
        strides=[[2, 1], [1]],
        pads=[[1, 0, 1, 0], [0, 1]],
        dilations=[[1, 1], [2]],
    )
    for output in outputs:
        builder.addOutputTensor(output)
    first, second = run(builder.getModelProto(), dict(zip(ids, arrays, strict=True)))
    a, c, k, m, n = map(torch.tensor, arrays)
    expected = torch.nn.functional.conv2d(a, k, stride=(2, 1), padding=(1, 0))
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-4)
    padded = torch.nn.functional.pad(c, (0, 1))
    expected = torch.nn.functional.conv1d(padded, m, n, dilation=2)
    np.testing.assert_allclose(second, expected, rtol=1e-4, atol=1e-4)
    assert builder.getTensorShape(outputs[0]) == list(first.shape)


def test_multiconv_refuses_what_conv_cannot():
    builder = Builder()
    x, w = builder.addInputTensor("FLOAT", [1, 1, 4]), builder.addInputTensor("FLOAT", [1, 1, 2])
    with pytest.raises(NotOnHostError, match="inDilations"):
        builder.aiGraphcore.multiconv([[x, w]], inDilations=[[2]])
    with pytest.raises(popart_exception, match="list of lists"):
        builder.aiGraphcore.multiconv([x, w])
    with pytest.raises(popart_exception, match=r"strides parameter sets \(1\) does not match"):
        builder.aiGraphcore.multiconv([[x, w], [x, w]], strides=[[2]])
    with pytest.raises(popart_exception, match="Length of dilations vector 2 != number of spatial"):
        builder.aiGraphcore.multiconv([[x, w], [x, w]], dilations=[[1], [2, 2]])


def test_shapeddropout_drops_whole_rows_and_scales_the_rest():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [4, 3])
    builder.addOutputTensor(builder.aiGraphcore.shapeddropout([x], shape=[4, 1], ratio=0.25))
    model = random_inputs(lower(load(builder.getModelProto())), training=True)
    values, kept = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([[1], [0], [1], [0]])
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    (found,) = session.run(None, {x: values, "RandomMask___0": kept.astype(bool)})
    np.testing.assert_allclose(found, values * kept / 0.75, rtol=1e-6)


def test_shapeddropout_drops_nothing_in_inference():
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(evaluate("shapeddropout", [x], shape=[4, 1]), x)


def test_shapeddropout_refuses_a_shape_that_cannot_be_broadcast():
    with pytest.raises(popart_exception, match="not broadcastable"):
        evaluate("shapeddropout", [np.ones((4, 3), np.float32)], shape=[2, 1])


def test_sums_over_replicas_of_one_process_are_refused():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    builder.addOutputTensor(builder.aiGraphcore.replicatedallreduce([x]))
    graph = load(builder.getModelProto()).graph
    require_one_local_replica(graph, 1)
    with pytest.raises(NotOnHostError, match="over 4 replicas of one process"):
        require_one_local_replica(graph, 4)
