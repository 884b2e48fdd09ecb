"""Nodes that PopART takes, or ONNX Runtime makes otherwise than ONNX says."""

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

import popdist_onnx as popart
from popdist_onnx.builder.builder import Builder
from popdist_onnx.graph.load import load, save
from popdist_onnx.lowering import lower

RANDOM = np.random.default_rng(7)


def run(builder, outputs, feeds, producer="popdist"):
    """The outputs of a builder's model, loaded as a session loads it."""
    for output in outputs:
        builder.addOutputTensor(output)
    proto = onnx.load_from_string(builder.getModelProto())
    proto.producer_name = producer
    model = save(lower(load(proto)))
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def node(opset, op_type, arrays, **attributes):
    """What ONNX's reference evaluator makes of one node."""
    names = [f"in{number}" if array is not None else "" for number, array in enumerate(arrays)]
    proto = helper.make_node(op_type, names, ["y"], **attributes)
    feeds = {n: a for n, a in zip(names, arrays, strict=True) if n}
    return ReferenceEvaluator(proto, opsets={"": opset}).run(None, feeds)[0]


MODES = ["nearest", "linear", "cubic"]
PLACES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
ROUNDING = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SHAPES_AND_SCALES = [
    ([1, 1, 4, 8], [1, 1, 0.6, 1.12]),
    ([1, 2, 3, 4], [1, 1, 2.3, 0.25]),
    ([8], [1.12]),
    ([2, 1, 3], [1, 1, 1.5]),
    ([1, 2, 3], [1, 2, 0.4]),
]


@pytest.mark.parametrize("mode", MODES)
def test_resize_is_what_onnx_says(mode):
    builder, expected, outputs, feeds = Builder(opsets={"ai.onnx": 11}), [], [], {}
    kinds = ROUNDING if mode == "nearest" else ["floor"]
    for places, rounding, (shape, scales) in itertools.product(PLACES, kinds, SHAPES_AND_SCALES):
        x = RANDOM.standard_normal(shape).astype(np.float32)
        arguments = {
            "mode": mode,
            "coordinate_transformation_mode": places,
            "nearest_mode": rounding,
        }
        by = np.asarray(scales, np.float32)
        expected.append(node(11, "Resize", [x, None, by], **arguments))
        name = builder.addInputTensor("FLOAT", shape)
        feeds[name] = x
        roi = builder.aiOnnx.constant(np.asarray([], np.float32))
        # Some in half precision, some as sizes, as PopART takes them.
        by = by.astype(np.float16) if np.all(by == by.astype(np.float16)) else by
        ids = [name, roi, builder.aiOnnx.constant(by)]
        outputs.append(builder.aiOnnx.resize(ids, **arguments))
    for found, wanted in zip(run(builder, outputs, feeds), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize(
    "scales", [[1, 1, 2, 0.5], [1, 1, 0.7, 1], [1, 1, 0.5, 3], [1, 1, 1, 0.3], [1, 1, 0.6, 0.6]]
)
@pytest.mark.parametrize("opset", [7, 9, 10, 11])
def test_older_nearest_is_that_of_torch(scales, opset):
    """Opset 11 has a rounding of this name."""
    # 3 / 0.6 is a whole number in single precision only.
    x = np.arange(56, dtype=np.float32).reshape(1, 1, 7, 8)
    builder = Builder(opsets={"ai.onnx": opset})
    name = builder.addInputTensor("FLOAT", x.shape)
    by = builder.aiOnnx.constant(np.asarray(scales, np.float32)) if opset > 7 else None
    if opset == 7:
        output = builder.aiOnnx.upsample([name], scales=scales, mode="nearest")
    elif opset == 11:
        roi = builder.aiOnnx.constant(np.asarray([], np.float32))
        output = builder.aiOnnx.resize([name, roi, by], mode="nearest", nearest_mode="pytorch")
    else:
        method = builder.aiOnnx.resize if opset == 10 else builder.aiOnnx.upsample
        output = method([name, by], mode="nearest")
    (found,) = run(builder, [output], {name: x})
    wanted = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=scales[2:])
    np.testing.assert_array_equal(found, wanted.numpy())


@pytest.mark.parametrize(
    ("arguments", "odd_end"),
    [
        # ONNX's text of opset 1: the smaller half at the beginning, but for SAME_UPPER.
        ({"output_shape": [2]}, [1, 12]),
        ({"output_shape": [2], "auto_pad": "SAME_LOWER"}, [1, 12]),
        ({"auto_pad": "SAME_UPPER"}, [12, 20]),
    ],
)
def test_transposed_convolution_crops_odd_paddings_as_its_opset_says(arguments, odd_end):
    # The text of opset 11 says the opposite; PopART's builder does not follow it.
    other = [12, 20] if odd_end == [1, 12] else [1, 12]
    cases = ((10, "popdist", odd_end), (11, "popdist", odd_end), (11, "another", other))
    for opset, producer, wanted in cases:
        builder = Builder(opsets={"ai.onnx": opset})
        x, w = (
            builder.addInputTensor("FLOAT", [1, 1, 2]),
            builder.addInputTensor("FLOAT", [1, 1, 2]),
        )
        y = builder.aiOnnx.convtranspose([x, w], **arguments)
        feeds = {x: np.array([[[1, 2]]], "f"), w: np.array([[[1, 10]]], "f")}
        np.testing.assert_array_equal(run(builder, [y], feeds, producer)[0].ravel(), wanted)


def test_a_convolution_crops_where_its_padding_is_below_zero():
    x = np.random.default_rng(0).normal(size=(1, 2, 10, 8)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(3, 2, 3, 3)).astype(np.float32)
    builder = Builder()
    ids = [builder.addInputTensor("FLOAT", one.shape) for one in (x, w)]
    y = builder.aiOnnx.conv(ids, dilations=[3, 2], pads=[0, 1, -1, -2])
    (found,) = run(builder, [y], dict(zip(ids, (x, w), strict=True)))
    padded = torch.nn.functional.pad(torch.tensor(x), (1, -2, 0, -1))
    expected = torch.nn.functional.conv2d(padded, torch.tensor(w), dilation=(3, 2))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("length", "scale", "made"), [(6, 5 / 6, 5), (10, 0.7, 7), (8, 1.5, 12)])
def test_lengths_of_a_resize_are_rounded_in_single_precision(length, scale, made):
    """5 / 6 in single precision is a little less, and 6 times that is 5 in single precision."""
    x = np.random.default_rng(0).random((1, 1, length), np.float32)
    builder = Builder(opsets={"ai.onnx": 11})
    name = builder.addInputTensor("FLOAT", x.shape)
    by = builder.aiOnnx.constant(np.array([1, 1, scale], np.float32))
    roi = builder.aiOnnx.constant(np.array([], np.float32))
    y = builder.aiOnnx.resize(
        [name, roi, by], mode="linear", coordinate_transformation_mode="pytorch_half_pixel"
    )
    (found,) = run(builder, [y], {name: x})
    expected = torch.nn.functional.interpolate(torch.tensor(x), size=made, mode="linear")
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)


REDUCTIONS = {
    "l1": lambda x: np.sum(np.abs(x), axis=()),
    "l2": lambda x: np.sqrt(np.sum(x * x, axis=())),
    "logsum": lambda x: np.log(np.sum(x, axis=())),
    "logsumexp": lambda x: np.log(np.sum(np.exp(x), axis=())),
    "max": lambda x: np.max(x, axis=()),
    "mean": lambda x: np.mean(x, axis=()),
    "min": lambda x: np.min(x, axis=()),
    "prod": lambda x: np.prod(x, axis=()),
    "sum": lambda x: np.sum(x, axis=()),
    "sumsquare": lambda x: np.sum(x * x, axis=()),
}


@pytest.mark.parametrize("opset", [6, 10, 11])
def test_a_reduction_over_no_axes_is_that_of_each_element(opset):
    builder = Builder(opsets={"ai.onnx": opset})
    x = builder.addInputTensor("FLOAT", [2, 3])
    outputs = [getattr(builder.aiOnnx, f"reduce{name}")([x], axes=[]) for name in REDUCTIONS]
    outputs += builder.aiGraphcore.reducemedian([x], axes=[])[:1]
    assert all(builder.getTensorShape(output) == [2, 3] for output in outputs)
    array = RANDOM.standard_normal([2, 3]).astype(np.float32)
    array[0, 0] = -abs(array[0, 0])
    for output in outputs:
        builder.addOutputTensor(output)
    proto = save(lower(load(builder.getModelProto())))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [*REDUCTIONS.values(), lambda x: x]
    for found, reduction in zip(session.run(None, {x: array}), wanted, strict=True):
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(found, reduction(array.astype("f8")), rtol=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axes", ["", ", a"])
def test_a_file_may_say_that_no_axes_reduce_nothing(name, axes):
    op = {"logsum": "LogSum", "logsumexp": "LogSumExp", "sumsquare": "SumSquare"}
    text = f"y = Reduce{op.get(name, name.capitalize())}<noop_with_empty_axes=1>(x{axes})"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[2,3] x) => (float[2,3] y) {{ {text} }}'
    )
    if axes:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(0, np.int64), "a"))
    array = np.abs(RANDOM.standard_normal([2, 3])).astype(np.float32)
    session = ort.InferenceSession(save(load(proto)).SerializeToString())
    np.testing.assert_allclose(
        session.run(None, {"x": array})[0], REDUCTIONS[name](array.astype("f8")), 1e-6
    )


def test_found_indices_have_32_bits_and_go_with_either_width():
    builder = Builder(opsets={"ai.onnx": 11})
    x = builder.addInputTensor("FLOAT", [2, 3])
    ops = builder.aiOnnx
    most, least = ops.argmax([x], axis=1, keepdims=0), ops.argmin([x], axis=1, keepdims=0)
    _, best = ops.topk([x, ops.constant(np.array([2]))])
    outputs = [most, least, best]
    outputs.append(ops.equal([most, ops.constant(np.array([2, 1], np.int32))]))
    outputs.append(ops.equal([ops.identity([most]), ops.constant(np.array([2, 1], np.int64))]))
    outputs.append(ops.gather([x, most], axis=1))
    outputs.append(ops.concat([most, least], axis=0))
    array = np.array([[1, 0, 5], [2, 9, -1]], np.float32)
    found = run(builder, outputs, {x: array})
    assert [one.dtype.name for one in found] == [
        *["int32"] * 3,
        *["bool"] * 2,
        "float32",
        "int32",
    ]
    np.testing.assert_array_equal(found[0], [2, 1])
    np.testing.assert_array_equal(found[1], [1, 2])
    np.testing.assert_array_equal(found[2], [[2, 0], [1, 0]])
    assert found[3].all()
    assert found[4].all()


def test_shapes_and_depths_of_32_bits():
    builder = Builder(opsets={"ai.onnx": 11})
    x = builder.addInputTensor("FLOAT", [2, 1])
    ops = builder.aiOnnx
    shape = ops.constant(np.array([2, 3], np.int32))
    outputs = [
        ops.expand([x, shape]),
        ops.constantofshape([shape]),
        ops.tile([x, shape]),
        ops.onehot(
            [
                ops.constant(np.array([1, -1], np.int32)),
                ops.constant(np.array(3, np.int32)),
                ops.constant(np.array([5, 7], np.int32)),
            ]
        ),
    ]
    assert [builder.getTensorShape(one) for one in outputs[:3]] == [[2, 3], [2, 3], [4, 3]]
    array = np.array([[1], [2]], np.float32)
    found = run(builder, outputs, {x: array})
    np.testing.assert_array_equal(found[0], np.broadcast_to(array, [2, 3]))
    np.testing.assert_array_equal(found[1], np.zeros([2, 3], np.float32))
    np.testing.assert_array_equal(found[2], np.tile(array, [2, 3]))
    np.testing.assert_array_equal(found[3], [[5, 7, 5], [5, 5, 7]])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_local_response_normalization_of_any_size(size):
    x = RANDOM.standard_normal([5, 5, 2, 2]).astype(np.float32)
    builder = Builder()
    name = builder.addInputTensor("FLOAT", x.shape)
    y = builder.aiOnnx.lrn([name], size=size, alpha=0.3, beta=0.5, bias=2.0)
    (found,) = run(builder, [y], {name: x})
    wanted = node(10, "LRN", [x], size=size, alpha=0.3, beta=0.5, bias=2.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_rests_of_floating_point_numbers_take_the_divisors_sign():
    a, b = np.array([5, -5, 5, -5, 4], np.float32), np.array([3, 3, -3, -3, 2], np.float32)
    builder = Builder()
    ids = [builder.addInputTensor("FLOAT", [5]) for _ in range(2)]
    (found,) = run(builder, [builder.aiOnnx.mod(ids)], dict(zip(ids, [a, b], strict=True)))
    np.testing.assert_array_equal(found, np.mod(a, b))


@pytest.mark.parametrize("opset", [10, 11])
def test_constants_whatever_is_said_of_their_density(opset):
    builder = Builder(opsets={"ai.onnx": opset})
    x = builder.addInputTensor("FLOAT", [2])
    number = np.array([1, 2], np.float32)
    arguments = (False,) if opset == 11 else ()
    y = builder.aiOnnx.add([x, builder.aiOnnx.constant(number, *arguments)])
    np.testing.assert_array_equal(run(builder, [y], {x: number})[0], 2 * number)


@pytest.mark.parametrize(("method", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_recurrent_states_are_as_long_as_their_weights_say(method, gates):
    def build(**arguments):
        builder = Builder(opsets={"ai.onnx": 11})
        ids = [builder.addInputTensor("FLOAT", one.shape) for one in arrays]
        outputs = getattr(builder.aiOnnx, method)(ids, 2, **arguments)
        assert builder.getTensorShape(outputs[0]) == [3, 1, 2, 5]
        return run(builder, outputs, dict(zip(ids, arrays, strict=True)))

    arrays = [
        RANDOM.standard_normal(shape).astype(np.float32)
        for shape in ([3, 2, 4], [1, gates * 5, 4], [1, gates * 5, 5])
    ]
    for found, wanted in zip(build(), build(hidden_size=5), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_normalization_of_every_element_before_opset_9():
    shapes = [[4, 3, 2], *[[3, 2]] * 4]
    # Its own numbers, whichever tests ran before: others may cancel down to rounding errors.
    random = np.random.default_rng(7)
    arrays = [random.random(shape).astype(np.float32) + 0.1 for shape in shapes]
    builder = Builder(opsets={"ai.onnx": 8})
    ids = [builder.addInputTensor("FLOAT", one) for one in shapes]
    y = builder.aiOnnx.batchnormalization(ids, 1, epsilon=0.01, spatial=0)[0]
    builder.addOutputTensor(y)
    proto = save(lower(load(builder.getModelProto())))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, dict(zip(ids, arrays, strict=True)))
    x, scale, bias, mean, variance = arrays
    wanted = (x - mean) / np.sqrt(variance + np.float32(0.01)) * scale + bias
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_other_forms_of_arguments():
    builder = Builder(opsets={"ai.onnx": 9, "ai.graphcore": 1})
    x = builder.addInputTensor("FLOAT", [2, 3, 4])
    flat = builder.aiOnnx.flatten([x], axis=-2)
    assert builder.getTensorShape(flat) == [2, 12]
    named = builder.aiGraphcore.init([2], popart.DataType.FLOAT, popart.InitType.Zero, "zeros")
    assert named.startswith("zeros")
    one = builder.addInputTensor("FLOAT", [1, 1])
    assert builder.getTensorShape(builder.aiGraphcore.reshape(one)) == []
    array = RANDOM.standard_normal([2, 3, 4]).astype(np.float32)
    np.testing.assert_array_equal(
        run(builder, [flat], {x: array, one: np.ones([1, 1], "f")})[0], array.reshape(2, 12)
    )


def test_batchnorm_of_every_element_trains_as_in_torch():
    """``spatial=0``: each element of a sample has statistics, scale and bias of its own."""
    rng = np.random.default_rng(3)
    shape, momentum, epsilon, rate = (2, 3), 0.8, 0.01, 0.1
    data = rng.standard_normal((3, 5, *shape)).astype(np.float32)
    starts = {
        name: rng.random(shape).astype(np.float32) + 0.5 for name in ("s", "b", "mean", "variance")
    }
    builder = popart.Builder(opsets={"ai.onnx": 8})
    x = builder.addInputTensor("FLOAT", [5, *shape], "x")
    ids = [builder.addInitializedInputTensor(one, name) for name, one in starts.items()]
    y = builder.aiOnnx.batchnormalization(
        [x, *ids], 5, epsilon=epsilon, momentum=momentum, spatial=0
    )[0]
    factors = np.cos(np.arange(30, dtype=np.float32)).reshape(5, *shape)
    weighed = builder.aiOnnx.mul([y, builder.aiOnnx.constant(factors)])
    loss = builder.aiGraphcore.identityloss([weighed], popart.ReductionType.Sum)
    session = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(3, [loss, y, "Gradient___x"]),
        loss,
        popart.ConstSGD(rate),
        popart.DeviceManager().createCpuDevice(),
    )
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    session.weightsFromHost()
    session.run(popart.PyStepIO({"x": data}, anchors))
    session.weightsToHost()
    found = {name: np.empty(shape, np.float32) for name in starts}
    session.readWeights(popart.PyWeightsIO(found))

    torches = {name: torch.tensor(one).double() for name, one in starts.items()}
    for step in range(3):
        s, b = (torches[name].detach().requires_grad_() for name in ("s", "b"))
        batch = torch.tensor(data[step]).double().requires_grad_()
        mean, variance = batch.mean(0), batch.var(0, correction=0)
        made = (batch - mean) / (variance + epsilon).sqrt() * s + b
        slopes = torch.autograd.grad((made * torch.tensor(factors)).sum(), [s, b, batch])
        torches["s"], torches["b"] = s - rate * slopes[0], b - rate * slopes[1]
        for name, one in (("mean", mean), ("variance", variance)):
            torches[name] = momentum * torches[name] + (1 - momentum) * one
        np.testing.assert_allclose(anchors[y][step], made.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(anchors["Gradient___x"][step], slopes[2], rtol=1e-3, atol=1e-4)
    for name, one in torches.items():
        np.testing.assert_allclose(found[name], one.detach(), rtol=1e-4, atol=1e-5, err_msg=name)
