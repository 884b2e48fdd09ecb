"""Reading models into the form that passes work on."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import newest_opset
from popdist_onnx.graph.load import load, read, save
from popdist_onnx.graph.names import ORIGIN
from popdist_onnx.graph.values import constant, dims
from popdist_onnx.transforms.statistics import batch_statistics
from tests.popdist_onnx.gradients.harness import session
from tests.popdist_onnx.nested_weights import NAMES, STARTS, nested_data, nested_model

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def parsed(text: str, opset: int = 18, **weights: np.ndarray) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return proto


# Forms of old opsets, each with what it says in the newest.
OLD = [
    (7, "y = BatchNormalization(x, w, w, w, w)"),
    (9, "y = Softmax<axis=1>(x)"),
    (9, "y = LogSoftmax<axis=2>(x)"),
    (12, "y = Hardmax<axis=1>(x)"),
    (11, "t = Unsqueeze<axes=[0]>(x) y = Squeeze<axes=[0]>(t)"),
    (12, "y = ReduceSum<axes=[1], keepdims=0>(x)"),
    (17, "y = ReduceMax<axes=[0, 2]>(x)"),
    (9, "y, i = TopK<k=2>(x)"),
    (11, "y, z = Split<axis=2, split=[1, 3]>(x)"),
    (17, "y, z = Split<axis=2>(x)"),
    (9, "y = Slice<starts=[1], ends=[3], axes=[2]>(x)"),
    (10, "y = Pad<pads=[0, 1, 0, 0, 0, 2], value=1.5>(x)"),
    (6, "y = Clip<min=2.0, max=9.0>(x)"),
    (7, "y = Upsample<scales=[1.0, 2.0, 1.0]>(x)"),
    (10, "y = Dropout<ratio=0.3>(x)"),
    (9, 'y = Upsample<mode="nearest">(x, s)'),
    (10, 'y = Resize<mode="linear">(x, s)'),
]


@pytest.mark.parametrize(("opset", "node"), OLD, ids=lambda value: str(value)[:24])
def test_old_forms_mean_the_same_at_the_working_opset(opset, node):
    proto = parsed(
        f"g (float[2,3,4] x) => (y) {{ {node} }}",
        opset,
        w=np.array([1, 2, 3], np.float32),
        v=np.array([1, 2, 3, 4], np.float32),
        s=np.array([1, 2, 1], np.float32),
    )
    model = load(proto)
    written = save(model)
    onnx.checker.check_model(written, full_check=True)
    assert model.graph.opset_imports[""] == 18
    assert all(dims(value) is not None for made in model.graph for value in made.outputs)
    old, new = (session(one).run(["y"], {"x": X})[0] for one in (proto, written))
    np.testing.assert_array_equal(old, new)


# ONNX Runtime begins at opset 7.
OLDEST = [
    ("y = Add<broadcast=1, axis=1>(x, w)", lambda x, w, _: x + w[:, None]),
    ("y = Mul<broadcast=1>(x, v)", lambda x, _, v: x * v),
    ("y = PRelu(x, w)", lambda x, w, _: np.where(x > 0, x, x * w[:, None])),
    ("y = Dropout<is_test=1>(x)", lambda x, *_: x),
]


@pytest.mark.parametrize(("node", "expected"), OLDEST, ids=lambda value: str(value)[:14])
def test_forms_of_opset_6(node, expected):
    w, v = np.array([1, 2, 3], np.float32), np.array([1, 2, 3, 4], np.float32)
    model = load(parsed(f"g (float[2,3,4] x) => (y) {{ {node} }}", 6, w=w, v=v))
    x = X - 11
    np.testing.assert_array_equal(session(model).run(["y"], {"x": x})[0], expected(x, w, v))


def test_statistics_of_the_batch_before_opset_14():
    """The fourth and fifth output; the variance in single precision beside half precision."""
    half, x = np.float16, X.astype(np.float16)
    ones = np.ones(3, half)
    model = load(
        parsed(
            "g (float16[2,3,4] x) => (y, m, v, a, b)"
            " { y, m, v, a, b = BatchNormalization<momentum=0.5>(x, w, w, o, s) }",
            9,
            w=ones,
            o=ones,
            s=np.ones(3, np.float32),
        )
    )
    y, mean, variance, own_mean, own_variance = session(batch_statistics(model)).run(
        list("ymvab"), {"x": x}
    )
    axes, wide = (0, 2), X.astype(np.float64)
    centre, spread = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    expected = (wide - centre) / np.sqrt(spread + 1e-5) + 1
    np.testing.assert_allclose(y, expected, atol=2e-3)
    np.testing.assert_allclose(own_mean, centre.reshape(-1), rtol=1e-3)
    np.testing.assert_allclose(own_variance, spread.reshape(-1), rtol=1e-3)
    np.testing.assert_allclose(mean, (1 + centre.reshape(-1)) / 2, rtol=1e-3)
    np.testing.assert_allclose(variance, (1 + spread.reshape(-1)) / 2, rtol=1e-3)
    assert (y.dtype, mean.dtype, variance.dtype) == (half, half, np.float32)


@pytest.mark.parametrize(
    ("condition", "known"), [("d = Identity (c)", True), ("d = Less (i, three)", False)]
)
def test_a_loop_that_goes_on_has_as_many_results_as_turns(condition, known):
    proto = parsed(
        f"""program (float[2] x) => (float[2] last, float[K, 2] rows)
        <int64 three = {{3}}, bool yes = {{1}}> {{
          last, rows = Loop (three, yes, x) <
            body = turn (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u) {{
              {condition} t = Add (s, s) u = Identity (t)
            }}>
        }}"""
    )
    (loop,) = [node for node in load(proto).graph if node.op_type == "Loop"]
    (_, rows) = ReferenceEvaluator(proto).run(None, {"x": X[0, 0, :2]})
    assert len(rows) == 3
    assert (dims(loop.outputs[1]) == rows.shape) == known


@pytest.mark.parametrize(
    ("auto", "expected"), [("", [[1, 4], [5, 15]]), ("SAME_UPPER", [[15, 10], [11, 4]])]
)
def test_a_builder_pads_transposed_convolutions_as_popart_does(auto, expected):
    """The numbers are PopART's; ONNX's text of opset 11 has the halves the other way round."""
    from popdist_onnx.builder.builder import Builder

    builder = Builder()
    x = builder.addInputTensor("FLOAT", [1, 1, 2, 2])
    w = builder.addInitializedInputTensor(np.array([[[[1, 2], [2, 1]]]], np.float32))
    y = builder.aiOnnxOpset11.convtranspose([x, w], output_shape=[2, 2])
    if auto:
        builder.addNodeAttribute("auto_pad", auto, {y})
    builder.addOutputTensor(y)
    data = np.array([[[[1, 2], [3, 4]]]], np.float32)
    (found,) = session(load(builder.getModelProto())).run([y], {x: data})
    np.testing.assert_array_equal(found[0, 0], expected)


@pytest.mark.parametrize(("scale", "length"), [(3.0001, 2), (0.51, 6)])
def test_a_builder_notes_how_an_older_resize_rounds(scale, length):
    from popdist_onnx.builder.builder import Builder

    builder = Builder()
    scales = np.array([1, 1, scale], np.float32)
    x = builder.addInputTensor("FLOAT", [1, 1, length])
    y = builder.aiOnnx.resize([x, builder.aiOnnx.constant(scales)])
    builder.addNodeAttribute("nearest_mode", "round_prefer_floor", {y})
    builder.addOutputTensor(y)
    data = np.random.default_rng(0).random((1, 1, length), np.float32)
    newer = parsed(
        f"g (float[1,1,{length}] x) => (y)"
        ' { y = Resize<mode="nearest", nearest_mode="round_prefer_floor">(x, , s) }',
        s=scales,
    )
    (expected,) = ReferenceEvaluator(newer).run(None, {"x": data})
    (found,) = session(load(builder.getModelProto())).run([y], {x: data})
    np.testing.assert_array_equal(found, expected)


def test_rewritten_nodes_remember_what_they_were():
    model = load(parsed("g (float[2,3,4] x) => (y) { y = Softmax(x) }", 9))
    assert {node.metadata_props.get(ORIGIN) for node in model.graph} >= {"Softmax-9"}


def test_what_depends_on_shapes_only_becomes_a_constant():
    model = load(
        parsed(
            "g (float[2,3,4] x) => (y) { s = Shape(x) i = Constant<value_ints=[0]>()"
            " b = Gather(s, i) m = Constant<value_ints=[-1]>() t = Concat<axis=0>(b, m)"
            " y = Reshape(x, t) }"
        )
    )
    (reshape,) = [node for node in model.graph if node.op_type == "Reshape"]
    assert constant(reshape.inputs[1]).tolist() == [2, -1]
    assert dims(reshape.outputs[0]) == (2, 12)
    assert {node.op_type for node in model.graph} == {"Constant", "Reshape"}


def test_weights_are_never_folded():
    weight = np.ones((2, 2), np.float32)
    model = load(parsed("g (float[2,2] x) => (y) { t = Transpose(w) y = Add(x, t) }", w=weight))
    assert [node.op_type for node in model.graph] == ["Transpose", "Add"]
    assert list(model.graph.initializers) == ["w"]


def test_initializers_are_no_inputs():
    proto = parsed("g (float[2] x, float[2] w) => (y) { y = Add(x, w) }", w=np.ones(2, np.float32))
    assert [value.name for value in load(proto).graph.inputs] == ["x"]


def test_functions_are_written_out():
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "local" : 1]>'
        " g (float[2] x) => (float[2] y) { y = local.twice(x) }"
        ' <domain: "local", opset_import: ["" : 18]> twice (a) => (b) { b = Add(a, a) }'
    )
    assert [node.op_type for node in load(proto).graph] == ["Add"]


def test_attributes_of_functions_have_their_defaults():
    """ONNX Runtime is the oracle: the inliner of onnx 1.18 drops the defaults."""
    text = (
        '<ir_version: 9, opset_import: ["" : 18, "local" : 1]>'
        " g (float[2,3] x) => (float[2,3] y, float[2,3] z, float[2,3] v)"
        " { y = local.outer(x) z = local.outer<slope=0.7>(x) v = local.bare(x) }"
        ' <domain: "local", opset_import: ["" : 18, "local" : 1]> outer <slope: float = 0.3> (a)'
        " => (b) { c = local.inner<alpha: float = @slope>(a) b = Identity(c) }"
        ' <domain: "local", opset_import: ["" : 18]> inner <alpha: float = 0.9> (a)'
        " => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }"
        ' <domain: "local", opset_import: ["" : 18, "local" : 1]> bare (a)'
        " => (b) { b = local.inner(a) }"
    )
    proto = parser.parse_model(text)
    x = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    model = load(proto)
    assert not model.functions
    for found, array in zip(session(model).run(None, {"x": x}), wanted, strict=True):
        np.testing.assert_array_equal(found, array)


def test_a_function_of_another_opset_is_refused():
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "local" : 1]>'
        " g (float[2] x) => (float[2] y) { y = local.twice(x) }"
        ' <domain: "local", opset_import: ["" : 15]> twice (a) => (b) { b = Add(a, a) }'
    )
    with pytest.raises(popart_exception, match="cannot be inlined: Opset mismatch"):
        load(proto)


@pytest.mark.parametrize("opset", [5, newest_opset() + 1])
def test_opsets_out_of_range_are_refused(opset):
    proto = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }", 18)
    proto.opset_import[0].version = opset
    with pytest.raises(popart_exception, match="opset is not supported") as raised:
        load(proto)
    assert raised.value.value == opset


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(popart_exception, match="Failed to load a ModelProto"):
        load(tmp_path / "nothing.onnx")
    for content in (b"", b"no protobuf at all"):
        with pytest.raises(popart_exception, match="model"):
            load(content)


def test_a_model_can_be_saved_and_read_again(tmp_path):
    model = load(parsed("g (float[2] x) => (y) { y = Add(x, w) }", w=np.ones(2, np.float32)))
    path = tmp_path / "model.onnx"
    save(model, path)
    assert save(load(path)) == save(load(path.read_bytes()))


def test_weights_of_loops_and_branches_come_to_the_main_graph():
    """With the same results, under names that say where they were; the source stays as it is."""
    source = nested_model(4)
    before = source.SerializeToString()
    lifted = ir.to_proto(read(source))
    assert source.SerializeToString() == before
    onnx.checker.check_model(lifted, full_check=True)
    weights = {one.name: numpy_helper.to_array(one) for one in lifted.graph.initializer}
    for name, full in NAMES.items():
        np.testing.assert_array_equal(weights[full], STARTS[name])
    x, _ = nested_data(4)
    # ONNX's evaluator lacks outer values in the body of a Scan.
    (wanted,) = session(source).run(None, {"x": x})
    (found,) = session(lifted).run(None, {"x": x})
    np.testing.assert_array_equal(found, wanted)


def test_a_weight_that_a_branch_returns_comes_to_the_main_graph_too():
    proto = parsed(
        "g (bool on, float[2] x) => (float[2] y) { z = If (on) <"
        "then_branch = t () => (float[2] a) { b = Neg(x) },"
        "else_branch = e () => (float[2] c) { c = Neg(x) }>  y = Add(x, z) }"
    )
    then = next(one.g for one in proto.graph.node[0].attribute if one.name == "then_branch")
    then.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "a"))
    lifted = ir.to_proto(read(proto))
    names = [one.name for one in lifted.graph.initializer]
    assert names == ["z/then_branch/a"]
    branch = next(one.g for one in lifted.graph.node[0].attribute if one.name == "then_branch")
    assert [(one.op_type, *one.input, *one.output) for one in branch.node[-1:]] == [
        ("Identity", "z/then_branch/a", "a")
    ]


def test_a_branch_may_state_a_shape_without_a_type():
    proto = parsed(
        "g (bool on, float[2] x) => (float[2] y) { y = If (on) <"
        "then_branch = t () => (float[2] a) { a = Neg(x) },"
        "else_branch = e () => (float[2] c) { c = Abs(x) }> }"
    )
    for one in proto.graph.node[0].attribute:
        one.g.output[0].type.tensor_type.ClearField("elem_type")
    x = np.array([1, -2], np.float32)
    (found,) = session(load(proto)).run(None, {"on": np.ones((), bool), "x": x})
    np.testing.assert_array_equal(found, -x)


MISFITS = {
    "its scale has shape [3], but must have [4]": "BatchNormalization(x, three, four, four, four)",
    "its variance has shape": "BatchNormalization(x, four, four, four, three)",
    "its bias has shape": "InstanceNormalization(x, four, three)",
    "the input has 4 channels, the weights in 1 group(s) take 3": "Conv(x, kernel)",
    "the input has 4 channels, the weights in 2 group(s) take 6": "Conv<group=2>(x, kernel)",
    "the input has 4 channels, the weights in 1 group(s) take 5": "ConvTranspose(x, kernel)",
    "a product of [5, 3] and [5, 3]": "Gemm(matrix, matrix)",
    "cannot be broadcast to [5, 5]": "Gemm<transB=1>(matrix, matrix, four)",
    "a tensor of 3 dimensions has no axis 4": "Softmax<axis=4>(x)",
    "mean and variance change and need tensors": "",
}


@pytest.mark.parametrize("complaint", MISFITS)
def test_operands_that_do_not_fit_are_named_when_a_model_is_read(complaint):
    shapes = {"three": [3], "four": [4], "kernel": [5, 3, 2], "matrix": [5, 3]}
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    what, opset = f"y = {MISFITS[complaint]}", 11
    if not MISFITS[complaint]:
        what = "y, m, v = BatchNormalization<training_mode=1>(x, four, four, four, four)"
        opset = 18
    proto = parsed(f"g (float[2, 4, 6] x) => (float[n] y) {{ {what} }}", opset, **weights)
    with pytest.raises(popart_exception, match=re.escape(complaint)) as raised:
        load(proto)
    assert raised.value.code == "PD510"
    assert "'y'" in str(raised.value)


def test_a_state_that_grows_keeps_the_lengths_that_its_body_leaves_open():
    """The other state has the length of the program's input."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        program (float[2, 3] x) => (float[K, 3] rows, float[2, 3] last)
        <int64 three = {3}, bool yes = {1}>
        {
          rows, last = Loop (three, yes, x, x) <
            body = turn (int64 i, bool c, float[K, 3] s, float[N, 3] u)
            => (bool d, float[L, 3] t, float[N, 3] v) {
              d = Identity (c)
              v = Add (u, u)
              t = Concat <axis = 0> (s, v)
            }>
        }"""
    )
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    wanted = ReferenceEvaluator(proto).run(None, {"x": x})
    model = load(proto)
    (loop,) = [node for node in model.graph if node.op_type == "Loop"]
    _, last = loop.outputs
    assert list(last.shape) == [2, 3]
    body = loop.attributes["body"].as_graph()
    assert not isinstance(body.inputs[2].shape[0], int)
    found = onnxruntime.InferenceSession(save(model).SerializeToString()).run(None, {"x": x})
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
