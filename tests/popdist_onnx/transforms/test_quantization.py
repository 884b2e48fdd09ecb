"""Quantized files: pairs train as torch's fake quantization, the rest is refused or listed."""

import io
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

import popdist_onnx
from popdist_onnx.graph.load import load
from popdist_onnx.lowering import lower
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from popdist_onnx.transforms.quantization import (
    pair_quantization,
    require_trainable_quantization,
    stored_integers,
)
from tests.popdist_onnx.gradients.harness import session

OWN = "com.microsoft"
SHAPE = (3, 4, 5)
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1), "int4": (-8, 7)}


def numbers(seed=0, shape=SHAPE):
    """Many of them are out of range, and some exactly in the middle between two steps."""
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32) * 8
    x.flat[:4] = [0.125, 0.375, -0.125, 0.0]
    return x


def pair(kind, scale, zero, *, opset=18, axis=None, clip=None, domain="", other=None, cast=False):
    """``loss = sum(c * dequantized(quantized(x)))``."""
    settings = {} if axis is None else {"axis": axis}
    stored = {"s": np.asarray(scale, np.float32), "c": numbers(1), "x": numbers()}
    stored |= {"s2": stored["s"] if other is None else np.asarray(other, np.float32)}
    given = {} if zero is None else {"z": zero}
    zeros = ["z"] if zero is not None else []
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", *zeros], ["q"], domain=domain, **settings)
    ]
    if clip is not None:
        given |= {"low": clip[0], "high": clip[1]}
        nodes.append(helper.make_node("Clip", ["q", "low", "high"], ["clipped"]))
    read = "q" if clip is None else "clipped"
    nodes += [
        helper.make_node(
            "DequantizeLinear", [read, "s2", *zeros], ["y"], "last", domain=domain, **settings
        ),
        helper.make_node("Mul", ["y", "c"], ["parts"]),
        helper.make_node("ReduceSum", ["parts"], ["loss"], keepdims=0),
    ]
    if cast:
        # As torch exports what PT2E has converted: scale and zero point are cast for each node.
        nodes[0].input[1:], nodes[-3].input[1:] = ["s/0", "z/0"], ["s/1", "z/1"]
        nodes[:0] = [
            helper.make_node("CastLike", ["s", "x"], ["s/0"]),
            helper.make_node("Cast", ["s2" if other else "s"], ["s/1"], to=TensorProto.FLOAT),
            *(
                helper.make_node("Cast", ["wide"], [name], to=getattr(TensorProto, kind.upper()))
                for name in ("z/0", "z/1")
            ),
        ]
        stored["wide"] = np.asarray(given.pop("z"), np.int64)
    graph = helper.make_graph(
        nodes,
        "pair",
        [],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in [("loss", []), ("y", SHAPE)]
        ],
        [
            *(numpy_helper.from_array(one, name) for name, one in stored.items()),
            *(whole(name, kind, one) for name, one in given.items()),
        ],
    )
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset < 23 else 11)


def whole(name, kind, content):
    content = np.asarray(content)
    kind = getattr(TensorProto, kind.upper())
    return helper.make_tensor(name, kind, content.shape, [int(one) for one in content.flat])


def trained(proto, weights=("x",)):
    """The results of the training graph, with gradients by the names of the weights."""
    model = require_trainable_quantization(set_loss(pair_quantization(load(proto)), "loss"))
    autodiff(model, outputs=list(weights))
    return dict(zip(["loss", "y", *weights], session(lower(model)).run(None, {}), strict=True))


CASES = {
    "one scale": ("uint8", 0.25, 10, {}),
    "no zero point": ("uint8", 0.25, None, {}),
    "signed": ("int8", 0.05, 0, {}),
    "with a zero point": ("int8", 0.05, -20, {}),
    "opset 10": ("uint8", 0.25, 10, {"opset": 10}),
    "opset 13": ("int8", [0.05, 0.25, 0.5, 0.02], [0, 0, 3, -7], {"opset": 13, "axis": 1}),
    "last axis": ("int8", [0.05, 0.25, 0.5, 0.02, 1.0], [0] * 5, {"axis": -1}),
    "first axis": ("uint8", [0.05, 0.25, 0.5], [9, 0, 255], {"axis": 0, "opset": 19}),
    "narrow": ("uint8", 0.25, 10, {"clip": (0, 127)}),
    "16 bits": ("int16", 0.0003, 12, {"opset": 21}),
    "16 bits of ONNX Runtime": ("int16", 0.0003, 12, {"opset": 17, "domain": OWN}),
    "4 bits": ("int4", 0.5, 1, {"opset": 21}),
    "the newest opset": ("int8", 0.05, 3, {"opset": 23}),
    "PT2E by tensor": ("uint8", 0.25, 10, {"opset": 20, "clip": (0, 127), "cast": True}),
    "PT2E by channel": (
        "int8",
        [0.05, 0.25, 0.5, 0.02],
        [0, 0, 3, -7],
        {"opset": 20, "axis": 1, "clip": (-128, 127), "cast": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pair_trains_as_fake_quantization_of_torch(case):
    kind, scale, zero, settings = CASES[case]
    proto = pair(kind, scale, zero, **settings)
    found = trained(proto)
    low, high = settings.get("clip", LIMITS[kind])
    x = torch.tensor(numbers(), requires_grad=True)
    if np.ndim(scale):
        # torch has this in single precision only, as ONNX has.
        zeros = torch.tensor(zero, dtype=torch.int32)
        made = torch.fake_quantize_per_channel_affine(
            x, torch.tensor(scale), zeros, settings["axis"] % len(SHAPE), low, high
        )
    else:
        made = torch.fake_quantize_per_tensor_affine(x, scale, zero or 0, low, high)
    (made * torch.tensor(numbers(1))).sum().backward()
    wanted = x.grad.numpy()
    assert 0 < np.count_nonzero(wanted) < wanted.size
    np.testing.assert_array_equal(found["x"], wanted)
    np.testing.assert_allclose(found["y"], made.detach().numpy(), rtol=1e-6, atol=1e-7)
    # torch multiplies by the inverse scale, so that results may differ at ties. ONNX divides.
    np.testing.assert_array_equal(found["y"], forward(proto))


def forward(proto):
    """What ONNX's reference makes; ONNX Runtime where the reference lacks the type or the opset."""
    kinds = {one.data_type for one in proto.graph.initializer}
    if len(proto.opset_import) > 1 or TensorProto.INT4 in kinds:
        return session(proto).run(["y"], {})[0]
    (opset,) = proto.opset_import
    opset.version = max(opset.version, 19)
    return ReferenceEvaluator(proto).run(["y"], {})[0]


def test_a_quantizer_that_measures_trains_straight_through():
    """`DynamicQuantizeLinear` takes its scale from the tensor; every number is in range."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        helper.make_node("Mul", ["y", "c"], ["parts"]),
        helper.make_node("ReduceSum", ["parts"], ["loss"], keepdims=0),
    ]
    proto = pair("uint8", 0.25, 0)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    kept = [one for one in proto.graph.initializer if one.name in ("x", "c")]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    found = trained(proto)
    np.testing.assert_array_equal(found["x"], numbers(1))
    np.testing.assert_array_equal(found["y"], forward(proto))


def test_scales_are_not_trained():
    model = pair_quantization(load(pair("int8", 0.05, 0)))
    autodiff(set_loss(model, "loss"))
    made = {str(value.name) for node in model.graph for value in node.outputs}
    assert "Gradient___x" in made
    assert not made & {"Gradient___s", "Gradient___s2"}


REFUSED = {
    "another scale": pair("int8", 0.05, 0, other=0.06),
    "another scale, cast": pair("int8", 0.05, 0, other=0.06, cast=True),
    "8-bit floats": None,
    "whole numbers between": None,
    "a product": None,
}


def refused(case):
    if REFUSED[case] is not None:
        return REFUSED[case]
    proto = pair("int8", 0.05, 0, opset=19)
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    if case == "8-bit floats":
        zero = helper.make_tensor("z8", TensorProto.FLOAT8E4M3FN, [], [0.0])
        proto.graph.initializer.append(zero)
        for node in nodes[:2]:
            node.input[2] = "z8"
    elif case == "whole numbers between":
        nodes.insert(1, helper.make_node("Transpose", ["q"], ["turned"], perm=[0, 1, 2]))
        nodes[2].input[0] = "turned"
    else:
        proto.graph.initializer.append(numpy_helper.from_array(np.eye(5, dtype=np.int8), "w"))
        nodes[1:2] = [
            helper.make_node("MatMulInteger", ["q", "w"], ["sums"], "product"),
            helper.make_node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT),
        ]
    proto.graph.node.extend(nodes)
    return proto


@pytest.mark.parametrize("case", REFUSED)
def test_what_takes_gradients_away_is_refused_by_name(case):
    with pytest.raises(popdist_onnx.popart_exception, match="PD598") as caught:
        trained(refused(case))
    assert "QuantizeLinear" in str(caught.value)
    assert ("MatMulInteger" in str(caught.value)) == (case == "a product")


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_weight_depends_on_is_not_refused(case):
    """Rounding of data, and of weights that are frozen."""
    proto = refused(case)
    onnx.helper.set_model_props(proto, {"popdist.frozen": '["x"]'})
    model = set_loss(pair_quantization(load(proto)), "loss")
    if case == "a product":
        # Its scales would be factors of their own, and train.
        with pytest.raises(popdist_onnx.popart_exception, match="PD598"):
            require_trainable_quantization(model)
        return
    assert require_trainable_quantization(model) is model


class Aware(nn.Module):
    """Quantization-aware: weights by channel and activations by tensor, in a narrow range."""

    def __init__(self, features=6, classes=3):
        super().__init__()
        self.first = nn.Linear(features, 16)
        self.last = nn.Linear(16, classes)
        self.register_buffer("scale", torch.linspace(0.02, 0.1, 16))
        self.register_buffer("zero", torch.zeros(16, dtype=torch.int32))

    def forward(self, x):
        weight = torch.fake_quantize_per_channel_affine(
            self.first.weight, self.scale, self.zero, 0, -128, 127
        )
        hidden = torch.relu(nn.functional.linear(x, weight, self.first.bias))
        hidden = torch.fake_quantize_per_tensor_affine(hidden, 0.1, 3, 0, 127)
        return self.last(hidden)


def export(module, **settings):
    file = io.BytesIO()
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), (torch.zeros(1, 6),), file, input_names=["x"], output_names=["y"],
            dynamic_axes=axes, dynamo=False, **settings,
        )  # fmt: skip
    return file.getvalue()


def samples():
    # With this seed no number is nearer than 1e-5 to where rounding turns.
    rng = np.random.default_rng(290)
    x = rng.normal(size=(32, 6)).astype(np.float32)
    return x, x[:, :3].argmax(1)


def trained_by_torch(batch, learning_rate, epochs):
    """The weights of `Aware` after SGD in torch."""
    torch.manual_seed(0)
    module = Aware()
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
    x, labels = (torch.from_numpy(one) for one in samples())
    for _ in range(epochs):
        for rows in range(0, len(x), batch):
            here = slice(rows, rows + batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[here]), labels[here]).backward()
            optimizer.step()
    return {name: one.detach().numpy() for name, one in module.named_parameters()}


@pytest.mark.parametrize("way", ["torchscript file", "from_torch"])
def test_a_quantization_aware_module_trains_as_in_torch(way):
    torch.manual_seed(0)
    module = Aware()
    source = export(module) if way == "torchscript file" else None
    if source is None:
        source = popdist_onnx.from_torch(module, torch.zeros(8, 6), "cross_entropy")
    trainer = popdist_onnx.Trainer(source, optimizer="sgd", learning_rate=0.2, batch_size=8)
    trainer.fit(*samples(), epochs=2, shuffle=False)
    for name, wanted in trained_by_torch(8, 0.2, 2).items():
        assert np.abs(wanted - module.get_parameter(name).detach().numpy()).max() > 1e-3
        np.testing.assert_allclose(
            trainer.weights[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name
        )


class Calibration:
    """A few samples, once."""

    def __init__(self):
        self.left = [{"x": samples()[0]}]

    def get_next(self):
        return self.left.pop() if self.left else None


def quantized(tmp_path, **options):
    """A file of ONNX Runtime's quantizer."""
    from onnxruntime import quantization

    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    (tmp_path / "float.onnx").write_bytes(export(module, opset_version=17))
    quantization.quantize_static(
        tmp_path / "float.onnx", tmp_path / "quantized.onnx", Calibration(), **options
    )
    return onnx.load(tmp_path / "quantized.onnx")


def test_a_file_of_onnxruntimes_quantizer_trains_where_its_weights_are_floats(tmp_path):
    proto = quantized(tmp_path, extra_options={"AddQDQPairToWeight": True, "QuantizeBias": False})
    trainer = popdist_onnx.Trainer(proto, optimizer="sgd", learning_rate=0.1, batch_size=32)
    before = {name: one.copy() for name, one in trainer.weights.items()}
    x, labels = samples()
    trainer.fit(x, labels, shuffle=False)
    moved = {name: before[name] - one for name, one in trainer.weights.items()}
    wanted = by_torch(proto, x, labels)
    assert wanted.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {name for name, one in moved.items() if one.any()} == wanted.keys()
    for name, gradient in wanted.items():
        np.testing.assert_allclose(moved[name], 0.1 * gradient, rtol=1e-4, atol=1e-6, err_msg=name)


def by_torch(proto, x, labels):
    """The gradients of such a file, node by node in torch."""
    stored = {one.name: torch.tensor(numpy_helper.to_array(one)) for one in proto.graph.initializer}
    names = [name for name in stored if name.endswith((".weight", ".bias"))]
    values = stored | {name: stored[name].clone().requires_grad_() for name in names}
    weights = {name: values[name] for name in names}
    values["x"] = torch.from_numpy(x)
    for node in proto.graph.node:
        read = [values[name] for name in node.input]
        match node.op_type:
            case "QuantizeLinear":
                unsigned = read[2].dtype is torch.uint8
                low, high = LIMITS["uint8" if unsigned else "int8"]
                made = torch.fake_quantize_per_tensor_affine(
                    read[0], float(read[1]), int(read[2]), low, high
                )
            case "DequantizeLinear":
                made = read[0]
            case "Relu":
                made = read[0].relu()
            case "Gemm":
                assert helper.get_node_attr_value(node, "transB") == 1
                made = nn.functional.linear(*read)
        values[node.output[0]] = made
    scores = values[proto.graph.output[0].name]
    nn.functional.cross_entropy(scores, torch.from_numpy(labels)).backward()
    return {name: one.grad.numpy() for name, one in weights.items()}


def test_weights_that_are_stored_as_whole_numbers_are_listed(tmp_path, caplog):
    quantized(tmp_path)
    nodes = onnx.load(tmp_path / "float.onnx").graph.node
    (last,) = (node.name for node in nodes if "2.weight" in node.input)
    proto = quantized(tmp_path, nodes_to_exclude=[last])
    names = stored_integers(ir.from_proto(proto))
    assert {*names} == {"0.weight_quantized", "0.bias_quantized"}
    trainer = popdist_onnx.Trainer(proto, optimizer="sgd", learning_rate=0.1, batch_size=32)
    assert all(name in caplog.text for name in names)
    lines = trainer.summary().splitlines()
    for name in names:
        (said,) = [line for line in lines if line.startswith(f"{name} ")]
        assert said.endswith("not trained: stored as whole numbers")
    trained = [line.split()[0] for line in lines if line.endswith("  trained")]
    assert trained == ["2.weight", "2.bias"]


def test_a_file_without_weights_of_floating_point_numbers_is_refused(tmp_path):
    with pytest.raises(popdist_onnx.popart_exception, match="PD545") as caught:
        popdist_onnx.Trainer(quantized(tmp_path))
    assert "AddQDQPairToWeight" in str(caught.value)


def test_a_file_of_integer_operators_is_refused(tmp_path):
    from onnxruntime import quantization

    proto = quantized(tmp_path, quant_format=quantization.QuantFormat.QOperator)
    with pytest.raises(popdist_onnx.popart_exception, match=r"com.microsoft QGemm") as caught:
        popdist_onnx.Trainer(proto)
    assert caught.value.code == "PD598"
    quantization.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    with pytest.raises(popdist_onnx.popart_exception, match="MatMulInteger") as caught:
        popdist_onnx.Trainer(tmp_path / "dynamic.onnx")
    assert "PD598" in str(caught.value)
    assert onnxruntime.InferenceSession(tmp_path / "dynamic.onnx")
