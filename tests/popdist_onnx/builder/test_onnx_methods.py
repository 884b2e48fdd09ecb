"""Methods of ai.onnx: every operator of every opset, with names and signatures as published."""

import inspect

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from popdist_onnx.builder.builder import Builder
from popdist_onnx.builder.methods import operators
from popdist_onnx.builder.onnx_methods import ai_onnx
from popdist_onnx.errors import NotOnHostError, popart_exception
from popdist_onnx.types.tensor_info import DataType
from tests.popdist_onnx.graphcore import run

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = range(6, NEWEST + 1)
PUBLISHED_COUNTS = {6: 95, 9: 123, 10: 137}


def parameters(version, name):
    signature = inspect.signature(getattr(ai_onnx(version), name))
    return str(signature).replace("(self, ", "(")


@pytest.mark.parametrize("version", OPSETS)
def test_every_operator_of_the_opset_is_a_method(version):
    names = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.since_version <= version
    }
    methods = operators(ai_onnx(version))
    assert len(methods) == len(names)
    assert {one.lower() for one in names} == {one.removeprefix("logical_") for one in methods}
    for method in methods:
        function = getattr(ai_onnx(version), method)
        assert "debugContext" in inspect.signature(function).parameters
        assert "Returns:" in function.__doc__


@pytest.mark.parametrize(("version", "count"), PUBLISHED_COUNTS.items())
def test_the_number_of_methods_is_the_published_one(version, count):
    assert len(operators(ai_onnx(version))) == count


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("matmul", "(args, debugContext='')"),
        ("gemm", "(args, alpha=1.0, beta=1.0, transA=0, transB=0, debugContext='')"),
        ("softmax", "(args, axis=1, debugContext='')"),
        (
            "conv",
            (
                "(args, dilations=[], group=1, kernel_shape=[], pads=[], strides=[],"
                " debugContext='', *, auto_pad='NOTSET')"
            ),
        ),
        (
            "maxpool",
            (
                "(args, num_outputs, kernel_shape, ceil_mode=0, dilations=[], pads=[],"
                " storage_order=0, strides=[], debugContext='', *, auto_pad='NOTSET')"
            ),
        ),
        (
            "batchnormalization",
            "(args, num_outputs, epsilon=1e-05, momentum=0.9, debugContext='')",
        ),
        ("constant", "(value, debugContext='')"),
        ("dropout", "(args, num_outputs, ratio=0.5, debugContext='')"),
        ("cast", "(args, to, debugContext='')"),
        ("reducesum", "(args, axes=None, keepdims=1, debugContext='')"),
        ("concat", "(args, axis, debugContext='')"),
        ("split", "(args, num_outputs, axis=0, split=[], debugContext='')"),
        ("pad", "(args, pads, mode='constant', value=0.0, debugContext='')"),
        ("logical_if", "(args, num_outputs, else_branch, then_branch, debugContext='')"),
    ],
)
def test_signatures_of_opset_10_are_the_published_ones(name, signature):
    assert parameters(10, name) == signature


def test_the_first_opset_used_locks():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    builder.aiOnnxOpset9.relu([x])
    builder.aiOnnx.relu([x])
    assert onnx.load_from_string(builder.getModelProto()).opset_import[0].version == 9
    with pytest.raises(RuntimeError, match="already defined as 9"):
        builder.aiOnnxOpset10.relu([x])


def test_opsets_can_be_asked_for():
    builder = Builder(opsets={"ai.onnx": 13, "ai.graphcore": 1})
    x = builder.addInputTensor("FLOAT", [2])
    builder.aiOnnx.relu([x])
    assert str(builder.aiOnnx) == "AiOnnx13"
    with pytest.raises(popart_exception, match="already defined as 13"):
        _ = builder.aiOnnxOpset10
    with pytest.raises(popart_exception, match="no such opset"):
        Builder(opsets={"ai.onnx": 99})
    with pytest.raises(popart_exception, match="no such opset"):
        _ = Builder().aiOnnxOpset5
    with pytest.raises(popart_exception, match="not a domain"):
        Builder(opsets={"onnx": 10})
    with pytest.raises(TypeError, match="opsets are versions by domain"):
        Builder(opsets=11)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda ops, x: ops.ad([x, x]), "no operator ad"),
        (lambda ops, x: ops.add([x]), "given 1, and takes 2"),
        (lambda ops, _: ops.concat([], 0), "given 0, and takes 1 or more"),
        (lambda ops, x: ops.conv([x] * 4), "given 4, and takes 2 to 3"),
        (lambda ops, x: ops.maxpool([x], 3, [1]), "MaxPool has invalid number of outputs"),
        (lambda ops, x: ops.relu(x), "args is a list of ids"),
        (lambda ops, x: ops.softmax([x], axes=1), "did you mean axis"),
        (lambda ops, x: ops.softmax([x], axis="1"), "a whole number for axis"),
        (lambda ops, x: ops.softmax([x], axis=1.5), "a whole number for axis"),
        (lambda ops, x: ops.transpose([x], perm=1), "a list of whole numbers for perm"),
        (
            lambda ops, x: ops.transpose([x], [1, 0, 2]),
            r"\[1 0 2\], rank 3 must be equal to rank of input tensor, shape \[2 2\], rank 2\.",
        ),
        (lambda ops, _: ops.randomnormal([2], seed=1.0), "Use session::setRandomSeed instead"),
        (lambda ops, x: ops.randomuniformlike([x], dtype=11), "DOUBLE is not supported in Poplar"),
        (lambda ops, x: ops.cast([x], "FLOTA"), "the name of an element type"),
        (lambda ops, x: ops.concat([x]), "missing a required argument: 'axis'"),
        (lambda ops, x: ops.relu([x], 1, 2), "too many positional arguments"),
        (lambda ops, x: ops.relu([x], debugContext=3), "a text or a DebugContext"),
        (lambda ops, x: ops.logical_if([x], 1, 2, 3), "a sub-graph builder"),
    ],
)
def test_arguments_that_do_not_fit(call, complaint):
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2, 2])
    before = builder.getModelProto()
    with pytest.raises(popart_exception, match=complaint):
        call(builder.aiOnnx, x)
    assert builder.getModelProto() == before


def test_deprecated_operators_say_so():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [1, 1, 2, 2])
    with pytest.raises(NotOnHostError, match="Upsample"):
        builder.aiOnnx.upsample([x, x])


def made_of(version, operands, call):
    builder = Builder(opsets={"ai.onnx": version})
    ids = [builder.aiOnnx.constant(one) for one in operands]
    builder.addOutputTensor(call(builder.aiOnnx, *ids))
    (result,) = run(builder.getModelProto(), {})
    return result


SCALES = np.array([1, 1, 2, 3], np.float32)
PLACES = np.array([[1, 0], [2, 1]])


def upsampled(mode):
    """The row of ``upsample`` in a mode."""
    return (
        [np.random.default_rng(0).random((1, 2, 3, 2), np.float32), SCALES],
        lambda ops, x, s: ops.upsample([x, s], mode=mode),
        9,
        {
            10: lambda ops, x, s: ops.resize([x, s], mode=mode),
            11: lambda ops, x, s: ops.resize(
                [x, "", s],
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
                mode=mode,
            ),
        },
    )


DEPRECATED = {
    "upsample, nearest": upsampled("nearest"),
    "upsample, linear": upsampled("linear"),
    "scatter": (
        [np.zeros((3, 2), np.float32), PLACES, np.array([[1, 2], [3, 4]], np.float32)],
        lambda ops, *given: ops.scatter([*given], 0),
        9,
        {11: lambda ops, *given: ops.scatterelements([*given], 0)},
    ),
}


@pytest.mark.parametrize("name", DEPRECATED)
def test_the_replacement_of_a_deprecated_operator_does_the_same(name):
    operands, call, last, replacements = DEPRECATED[name]
    wanted = made_of(last, operands, call)
    for version, replacement in replacements.items():
        with pytest.raises(NotOnHostError, match=r"use (resize|scatterelements)") as caught:
            made_of(version, operands, call)
        said = caught.value.hint
        assert said.startswith("use scatterelements" if name == "scatter" else "use resize")
        assert ("asymmetric" in said) == (name != "scatter" and version > 10)
        np.testing.assert_allclose(made_of(version, operands, replacement), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "dtype", ["INT32", "int32", np.int32, np.dtype("int32"), DataType.INT32, 6]
)
def test_types_are_named_in_every_usual_way(dtype):
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    assert builder.getTensorDtypeString(builder.aiOnnx.cast([x], dtype)) == "int32"


@pytest.mark.parametrize("version", [one for one in OPSETS if 18 <= one <= 23])
def test_split_into_equal_parts_since_opset_18(version):
    builder = Builder(opsets={"ai.onnx": version})
    x = builder.addInputTensor("FLOAT", [5])
    parts = builder.aiOnnx.split([x], num_outputs=2)
    assert [builder.getTensorShape(one) for one in parts] == [[3], [2]]


def network(version):
    builder = Builder(opsets={"ai.onnx": version})
    x = builder.addInputTensor("FLOAT", [1, 1, 4, 4])
    w = builder.addInitializedInputTensor(np.ones((2, 1, 2, 2), np.float32))
    ops = builder.aiOnnx
    with builder.virtualGraph(1), builder.pipelineStage(0):
        y = ops.conv([x, w], strides=[2, 2])
        y = ops.averagepool([ops.relu([y])], [2, 2])
    y = builder.reshape_const(ops, [y], [1, 2])
    eye, zero = (ops.constant(one.astype(np.float32)) for one in (np.eye(2), np.zeros(2)))
    y = ops.softmax([ops.gemm([y, eye, zero])], axis=1)
    builder.addOutputTensor(y)
    return builder.getModelProto(), {x: np.ones((1, 1, 4, 4), np.float32)}


@pytest.mark.parametrize("version", [one for one in OPSETS if 7 <= one <= 23])
def test_models_of_every_opset_run_as_they_are(version):
    model, feeds = network(version)
    proto = onnx.load_from_string(model)
    # Before opset 9 the schema of Constant knows no whole numbers, which the shape is made of.
    onnx.checker.check_model(proto, full_check=version >= 9)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], [[0.5, 0.5]])


@pytest.mark.parametrize("version", [one for one in OPSETS if one <= 23])
def test_models_of_every_opset_run_once_they_are_loaded(version):
    np.testing.assert_allclose(run(*network(version))[0], [[0.5, 0.5]])


def test_opsets_are_offered_for_completion():
    assert {"aiOnnx", "aiOnnxOpset6", f"aiOnnxOpset{NEWEST}"} <= set(dir(Builder()))
    assert "softmax" in dir(Builder().aiOnnx)
