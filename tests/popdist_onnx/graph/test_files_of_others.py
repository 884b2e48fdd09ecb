"""Forms of files that exporters and optimizers of others write."""

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import popdist_onnx
from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import add_sum
from tests.popdist_onnx.gradients.harness import session

RANDOM = np.random.default_rng(3)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def gelu(x):
    return torch.nn.functional.gelu(x)


def skipped(x, skip, scale, shift, bias):
    total = x + skip + bias
    return torch.nn.functional.layer_norm(total, total.shape[-1:], scale, shift, 1e-5)


def root_mean(x, skip, scale):
    total = x + skip
    return total / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale


def attended(q, k, v, heads, allowed=None, added=0.0):
    """Attention of ``[batch, position, heads * width]`` by the published formula."""
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + added
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -1e4)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def self_attended(x, weight, bias, allowed=None, added=0.0, parts=(6, 6, 6)):
    return attended(*(x @ weight + bias).split(parts, -1), 2, allowed, added)


KEYS = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
WITH_BIAS = [normal(2, 3, 4), normal(4, 18), normal(18)]

# Operator, operands, attributes, and the same in torch.
OPERATORS = {
    "Gelu": ([normal(2, 3, 4)], {}, gelu),
    "BiasGelu": ([normal(2, 3, 4), normal(4)], {}, lambda x, b: gelu(x + b)),
    "FastGelu": (
        [normal(2, 3, 4), normal(4)],
        {},
        lambda x, b: torch.nn.functional.gelu(x + b, approximate="tanh"),
    ),
    "QuickGelu": ([normal(2, 3)], {"alpha": 1.5}, lambda x: x * torch.sigmoid(1.5 * x)),
    "FusedMatMul": (
        [normal(2, 4, 3), normal(2, 4, 5)],
        {"transA": 1, "alpha": 0.5},
        lambda a, b: 0.5 * a.transpose(1, 2) @ b,
    ),
    "FusedMatMul of batches": (
        [normal(4, 2, 3), normal(2, 5, 3)],
        {"transBatchA": 1, "transB": 1},
        lambda a, b: a.permute(1, 0, 2) @ b.transpose(1, 2),
    ),
    "SkipLayerNormalization": (
        [normal(2, 3, 4), normal(2, 3, 4), normal(4), normal(4), normal(4)],
        {"epsilon": 1e-5},
        skipped,
    ),
    "SkipSimplifiedLayerNormalization": (
        [normal(2, 3, 4), normal(2, 3, 4), normal(4)],
        {"epsilon": 1e-5},
        root_mean,
    ),
    "Attention": (WITH_BIAS, {"num_heads": 2}, self_attended),
    "Attention of keys that count": (
        [*WITH_BIAS, KEYS],
        {"num_heads": 2},
        lambda x, w, b, keys: self_attended(x, w, b, keys[:, None, None, :] > 0),
    ),
    "Attention of so many keys": (
        [*WITH_BIAS, KEYS.sum(1, dtype=np.int32)],
        {"num_heads": 2},
        lambda x, w, b, _: self_attended(x, w, b, torch.tensor(KEYS)[:, None, None, :] > 0),
    ),
    "Attention of earlier keys": (
        WITH_BIAS,
        {"num_heads": 2, "unidirectional": 1},
        lambda x, w, b: self_attended(x, w, b, torch.ones(3, 3).tril() > 0),
    ),
    "Attention of wider keys": (
        [normal(2, 3, 4), normal(4, 22), normal(22), None, None, normal(2, 2, 3, 3)],
        {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 6]},
        lambda x, w, b, added: self_attended(x, w, b, None, added, (8, 8, 6)),
    ),
    "MultiHeadAttention": (
        [normal(2, 3, 6), normal(2, 5, 6), normal(2, 5, 8), normal(20)],
        {"num_heads": 2},
        lambda q, k, v, b: attended(q + b[:6], k + b[6:12], v + b[12:], 2),
    ),
}


def of_operator(name):
    arrays, attributes, _ = OPERATORS[name]
    names = ["" if a is None else f"x{number}" for number, a in enumerate(arrays)]
    feeds = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    node = helper.make_node(
        name.partition(" ")[0], names, ["y"], domain="com.microsoft", **attributes
    )
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_onnx_runtime_have_gradients(name):
    proto, feeds = of_operator(name)
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    model = add_sum(load(proto), "y", "sum")
    floating = [name for name, array in feeds.items() if array.dtype == np.float32]
    autodiff(model, outputs=floating)
    found = session(model)
    values = dict(
        zip([one.name for one in model.graph.outputs], found.run(None, feeds), strict=True)
    )
    np.testing.assert_allclose(values["y"], wanted, rtol=1e-4, atol=1e-5)
    tensors = {
        key: torch.tensor(a, dtype=torch.float64, requires_grad=True)
        if key in floating
        else torch.tensor(a)
        for key, a in feeds.items()
    }
    OPERATORS[name][2](*tensors.values()).sum().backward()
    for key in floating:
        tensor = tensors[key]
        np.testing.assert_allclose(
            values[f"Gradient___{key}"], tensor.grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=key
        )


def linear(weight=None, **more):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 2])],
        [helper.make_tensor_value_info("y", 1, ["N", 3])],
        [] if weight is None else [weight],
        **more,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


PLACES = {"by number": [1, 5], "by dimension": [[0, 1], [1, 2]]}


@pytest.mark.parametrize("places", PLACES)
def test_sparse_initializers_become_dense_weights(places):
    values = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    indices = numpy_helper.from_array(np.array(PLACES[places], np.int64))
    sparse = helper.make_sparse_tensor(values, indices, [2, 3])
    proto = linear(sparse_initializer=[sparse])
    x = normal(4, 2)
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    trainer = popdist_onnx.Trainer(proto, loss="mse", batch_size=4)
    np.testing.assert_array_equal(trainer.weights["w"], [[0, 2, 0], [0, 0, 3]])
    np.testing.assert_allclose(trainer.predict(x), wanted, rtol=1e-6)
    assert trainer.trained == ["w"]


@pytest.mark.parametrize(("shape", "place"), [([2**30, 2**30], 1), ([2, 3], 6)])
def test_sparse_initializers_that_are_too_large_or_broken_are_refused(shape, place):
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = numpy_helper.from_array(np.array([place]))
    sparse = helper.make_sparse_tensor(values, indices, shape)
    with pytest.raises(popdist_onnx.popart_exception, match="sparse") as raised:
        popdist_onnx.Trainer(linear(sparse_initializer=[sparse]), loss="mse", batch_size=4)
    assert raised.value.code == "PD610"


def test_a_file_of_other_domains_needs_no_opset_of_onnx():
    node = helper.make_node(
        "LinearRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        coefficients=[1.0, -2.0],
        intercepts=[0.5],
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)])
    before = proto.SerializeToString()
    x = normal(8, 2)
    trainer = popdist_onnx.Trainer(proto, loss="mse", batch_size=4)
    np.testing.assert_allclose(trainer.predict(x), x @ [[1.0], [-2.0]] + 0.5, rtol=1e-5)
    trainer.fit(x, x[:, :1])
    assert proto.SerializeToString() == before


def test_only_named_weights_train_and_others_say_who_reads_them():
    torch.manual_seed(0)
    names = ["body.weight", "onnx::MatMul_7", "head.weight"]
    nodes = [
        helper.make_node("MatMul", [f"h{n}", name], [f"h{n + 1}"], name=f"/part{n}/MatMul")
        for n, name in enumerate(names)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("h0", 1, ["N", 3])],
        [helper.make_tensor_value_info("h3", 1, ["N", 3])],
        [numpy_helper.from_array(normal(3, 3), name) for name in names],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    trainer = popdist_onnx.Trainer(proto, loss="mse", batch_size=4, train="head.*")
    assert trainer.trained == ["head.weight"]
    (line,) = [one for one in trainer.summary().splitlines() if "onnx::MatMul_7" in one]
    assert "frozen; read by /part1/MatMul" in line
    with pytest.raises(popdist_onnx.popart_exception, match="train: no weight is called 'heads'"):
        popdist_onnx.Trainer(proto, loss="mse", batch_size=4, train="heads")


@pytest.mark.parametrize("kind", [np.uint32, np.uint8, np.int16])
def test_indices_of_popart_have_any_type(kind):
    builder = popdist_onnx.Builder(opsets={"ai.onnx": 11})
    data = builder.addInputTensor("FLOAT", [3, 2])
    name = {np.uint32: "UINT32", np.uint8: "UINT8", np.int16: "INT16"}[kind]
    places = builder.addInputTensor(popdist_onnx.TensorInfo(name, [2]))
    y = builder.aiOnnx.gather([data, places])
    builder.addOutputTensor(y)
    x, i = normal(3, 2), np.array([2, 0], kind)
    model = load(builder.getModelProto())
    (found,) = session(model).run(None, {data: x, places: i})
    np.testing.assert_array_equal(found, x[i])


def test_bfloat16_has_a_clear_answer():
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [2, 3], np.ones(6, np.float32))
    proto = linear(weight)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    with pytest.raises(popdist_onnx.poplar_exception, match="convertBFloats16ToFloat32"):
        popdist_onnx.Trainer(proto, loss="mse", batch_size=4)
    single = popdist_onnx.GraphTransformer(proto.SerializeToString())
    single.convertBFloats16ToFloat32()
    x = normal(4, 2)
    trainer = popdist_onnx.Trainer(single.getModelProto(), loss="mse", batch_size=4)
    np.testing.assert_allclose(trainer.predict(x), x @ np.ones((2, 3)), rtol=1e-5)


def with_text(nodes, inputs, outputs, *initializers):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), *nodes],
        "g",
        [*inputs, helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [*outputs, helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.ones((2, 3), np.float32), "w"), *initializers],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


TEXT = helper.make_tensor_value_info("text", TensorProto.STRING, ["N"])
SAME = helper.make_tensor_value_info("same", TensorProto.STRING, ["N"])


def trained_in_numpy(x, labels):
    """The weights after one epoch of softmax regression, in double precision."""
    weight = np.ones((2, 3))
    for rows in range(0, len(x), 4):
        part = x[rows : rows + 4].astype(np.float64)
        scores = np.exp(part @ weight)
        slopes = scores / scores.sum(1, keepdims=True) - np.eye(3)[labels[rows : rows + 4]]
        weight -= 0.1 * part.T @ slopes / 4
    return weight


def test_text_beside_the_network_does_not_keep_it_from_training():
    x, labels = normal(8, 2), np.array([0, 1, 2, 0, 1, 2, 0, 1])
    names = helper.make_tensor("names", TensorProto.STRING, [3], [b"cat", b"dog", b"cow"])
    chosen = [
        helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["names", "best"], ["same"]),
    ]
    passed = [helper.make_node("Identity", ["text"], ["same"])]
    optimizer = popdist_onnx.SGD({"defaultLearningRate": (0.1, False)})
    for proto, data in (
        (with_text(chosen, [], [SAME], names), x),
        (with_text(passed, [TEXT], [SAME]), {"x": x, "text": np.array(["a"] * 8, object)}),
    ):
        trainer = popdist_onnx.Trainer(
            proto, loss="cross_entropy", batch_size=4, optimizer=optimizer
        )
        trainer.fit(data, labels, epochs=1, shuffle=False)
        np.testing.assert_allclose(trainer.weights["w"], trained_in_numpy(x, labels), rtol=1e-5)


def test_text_that_the_network_reads_is_refused():
    codes = [
        helper.make_node(
            "LabelEncoder",
            ["text"],
            ["code"],
            domain="ai.onnx.ml",
            keys_strings=["a", "b"],
            values_floats=[0.0, 1.0],
        ),
        helper.make_node("Unsqueeze", ["code", "one"], ["column"]),
        helper.make_node("Mul", ["y", "column"], ["z"]),
    ]
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 3])
    proto = with_text(codes, [TEXT], [z], one)
    with pytest.raises(popdist_onnx.popart_exception, match="input text holds text") as raised:
        popdist_onnx.Trainer(proto, loss="cross_entropy", batch_size=4)
    assert raised.value.code == "PD573"


def dictionary():
    kind = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    )
    return helper.make_value_info("given", kind)


OTHERS = [helper.make_tensor_sequence_value_info("given", TensorProto.FLOAT, [2]), dictionary()]


@pytest.mark.parametrize("given", OTHERS, ids=["sequence", "dictionary"])
def test_what_is_no_tensor_is_no_input_of_a_session(given):
    graph = helper.make_graph(
        [helper.make_node("ConcatFromSequence", ["given"], ["y"], axis=0)],
        "g",
        [given],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    device = popdist_onnx.DeviceManager().createCpuDevice()
    flow = popdist_onnx.DataFlow(1, ["y"])
    with pytest.raises(popdist_onnx.popart_exception, match="given is not a tensor") as raised:
        popdist_onnx.InferenceSession(proto.SerializeToString(), flow, device)
    assert raised.value.code == "PD573"
