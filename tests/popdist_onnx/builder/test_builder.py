"""Models as a whole: queries, files, sub-graphs, operators of other domains."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import popdist_onnx as popart
from popdist_onnx.builder import model_file
from popdist_onnx.builder.builder import Builder
from popdist_onnx.builder.onnx_methods import getSupportedOperations
from popdist_onnx.errors import popart_exception
from popdist_onnx.types.tensor_info import (
    ExchangeStrategy,
    InputSettings,
    ReplicatedStreamMode,
    TensorInfo,
)
from tests.popdist_onnx.graphcore import run


def multilayer():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2, 3], "x")
    w = builder.addInitializedInputTensor(np.arange(12, dtype=np.float32).reshape(3, 4), "w")
    y = builder.aiOnnx.relu([builder.aiOnnx.matmul([x, w])])
    builder.addOutputTensor(y)
    return builder, x, w, y


def test_queries():
    builder, x, w, y = multilayer()
    assert builder.getInputTensorIds() == [x, w]
    assert builder.getOutputTensorIds() == [y]
    assert builder.getValueTensorIds() == ["MatMul:0", "Relu:0"]
    assert builder.getTrainableTensorIds() == [w]
    assert builder.isInitializer(w)
    assert not builder.isInitializer(x)
    assert (builder.getTensorShape(y), builder.getTensorDtypeString(y)) == ([2, 4], "float32")
    with pytest.raises(popart_exception, match="Unknown tensor 'z'"):
        builder.getTensorShape("z")


def test_a_shape_is_known_before_and_after_a_tensor_becomes_an_output():
    builder = Builder(opsets={"ai.onnx": 11})
    x = builder.addInputTensor("FLOAT", [2, 6], "x")
    shape = builder.aiOnnxOpset11.concat(
        [builder.aiOnnxOpset11.constant(np.array([n], np.int64)) for n in (3, 4)],
        axis=0,
    )
    y = builder.aiOnnxOpset11.reshape([x, shape])
    assert builder.getTensorShape(y) == [3, 4]
    z = builder.aiOnnxOpset11.reshape([x, shape])
    builder.addOutputTensor(z)
    assert builder.getTensorShape(z) == [3, 4]


def test_weights_stand_in_typed_fields():
    builder, *_ = multilayer()
    (w,) = onnx.load_from_string(builder.getModelProto()).graph.initializer
    assert list(w.float_data) == list(range(12))


@pytest.mark.parametrize(
    ("opset", "ir_version"), [(6, 3), (8, 3), (9, 4), (10, 4), (11, 4), (15, 8)]
)
def test_versions_in_the_file(opset, ir_version):
    builder = Builder(opsets={"ai.onnx": opset})
    builder.addOutputTensor(builder.aiOnnx.relu([builder.addInputTensor("FLOAT", [2])]))
    proto = onnx.load_from_string(builder.getModelProto())
    assert proto.ir_version == ir_version
    assert {one.domain: one.version for one in proto.opset_import} == {
        "": opset,
        "ai.graphcore": 1,
    }
    onnx.checker.check_model(proto)


def test_models_are_saved_and_gone_on_with(tmp_path):
    builder, x, w, y = multilayer()
    builder.saveModelProto(tmp_path / "model.onnx")
    for source in (str(tmp_path / "model.onnx"), builder.getModelProto()):
        again = Builder(source)
        assert again.getInputTensorIds() == [x, w]
        assert again.getTensorShape(y) == [2, 4]
        assert again.aiOnnx.relu([y]) == "Relu:0/1"
        assert len(onnx.load_from_string(again.getModelProto()).graph.node) == 3
        with pytest.raises(popart_exception, match="already defined as 10"):
            _ = again.aiOnnxOpset11
    with pytest.raises(popart_exception, match="Failed to load a ModelProto"):
        Builder("nowhere.onnx")


def test_initializers_move_to_a_file_of_their_own(tmp_path):
    builder, x, w, _ = multilayer()
    feeds = {x: np.ones((2, 3), np.float32)}
    expected = ort.InferenceSession(builder.getModelProto()).run(None, feeds)[0]
    builder.saveInitializersExternally([w], tmp_path / "weights.bin")
    builder.saveModelProto(tmp_path / "model.onnx")
    assert (tmp_path / "weights.bin").stat().st_size == 48
    raw = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert raw.graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL
    found = ort.InferenceSession(tmp_path / "model.onnx").run(None, feeds)[0]
    np.testing.assert_array_equal(found, expected)
    session = popart.InferenceSession(
        builder.getModelProto(),
        popart.DataFlow(1, builder.getOutputTensorIds()),
        popart.DeviceManager().createCpuDevice(),
    )
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO(feeds, anchors))
    (found,) = anchors.values()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(popart_exception, match="parent directory does not exist"):
        builder.saveInitializersExternally([w], tmp_path / "nowhere" / "weights.bin")
    with pytest.raises(popart_exception, match="already has an external data_location"):
        builder.saveInitializersExternally([w], tmp_path / "weights.bin")
    with pytest.raises(popart_exception, match="exists already"):
        builder.saveInitializersExternally([], tmp_path / "weights.bin")
    with pytest.raises(popart_exception, match="'x' is not an initializer"):
        builder.saveInitializersExternally([x], tmp_path / "other.bin")


def test_a_model_keeps_the_numbers_that_it_was_given():
    """A program may use one array for several weights and constants."""
    builder, array = Builder(), np.ones((2, 2), np.float32)
    w = builder.addInitializedInputTensor(array)
    array *= 3
    constant = builder.aiOnnx.constant(array)
    array *= 5
    builder.addOutputTensor(builder.aiOnnx.mul([w, constant]))
    (found,) = run(builder.getModelProto(), {})
    np.testing.assert_array_equal(found, np.full((2, 2), 3, np.float32))


def test_models_that_no_one_could_read_are_refused(monkeypatch):
    monkeypatch.setattr(model_file, "_MOST_BYTES", 2000)
    builder = Builder()
    for _ in range(3):
        builder.addInitializedInputTensor(np.zeros(200, np.float32))
    with pytest.raises(popart_exception, match="larger than the 2 GiB"):
        builder.getModelProto()


@pytest.mark.parametrize(
    "content", [3.0, [1.0], np.array(["a"]), np.array([object()]), np.zeros(2, "datetime64[s]")]
)
def test_weights_are_arrays_of_numbers(content):
    with pytest.raises(popart_exception, match="PD507"):
        Builder().addInitializedInputTensor(content)


def test_weights_need_not_be_contiguous_and_may_be_scalars():
    builder = Builder()
    builder.addInitializedInputTensor(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    builder.addInitializedInputTensor(np.float32(2).reshape(()))
    first, second = onnx.load_from_string(builder.getModelProto()).graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(first), [[0, 3], [1, 4], [2, 5]])
    assert list(second.dims) == []


@pytest.mark.parametrize(
    "arguments", [(), ("FLOAT",), ("FLOAT", "x"), (3, [2]), ("FLOAT", [2], "a", "b")]
)
def test_inputs_need_type_and_shape(arguments):
    with pytest.raises(popart_exception):
        Builder().addInputTensor(*arguments)


def test_inputs_take_settings_that_a_host_can_follow():
    builder = Builder()
    settings = InputSettings(ReplicatedStreamMode.Replicate, ExchangeStrategy.JustInTime)
    assert builder.addInputTensor(TensorInfo("FLOAT", [2]), settings, "x") == "x"
    with pytest.raises(popart_exception, match="cannot be broadcast"):
        InputSettings(ReplicatedStreamMode.Broadcast)
    with pytest.raises(popart_exception, match="not a setting"):
        InputSettings("fast")


def test_supported_operations():
    found = getSupportedOperations()
    assert ("ai.onnx", "Softmax", 13) in found
    assert ("ai.graphcore", "Nll", 1) in found
    assert ("ai.graphcore", "Abort", 1) in found
    assert {one.type for one in getSupportedOperations(includeInternal=True)} > {"GradCopyToHost"}


def test_shapes_below_zero_are_refused():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [1, 1, 2, 2])
    with pytest.raises(popart_exception, match="negative dimension"):
        builder.aiOnnx.maxpool([x], 1, [5, 5])


@pytest.mark.parametrize(
    ("name", "shapes"),
    [("matmul", ([2, 3], [4, 5])), ("add", ([2], [3]))],
)
def test_operands_that_do_not_fit_are_found_while_building(name, shapes):
    builder = Builder()
    ids = [builder.addInputTensor("FLOAT", shape) for shape in shapes]
    with pytest.raises(
        popart_exception, match=r"contracting dimensions unequal|frames .* are not aligned"
    ) as error:
        getattr(builder.aiOnnx, name)(ids)
    assert str(tuple(shapes[0])) in str(error.value)
    assert builder.getValueTensorIds() == []


def test_a_branch_reads_the_graph_around_it():
    builder = Builder()
    condition = builder.addInputTensor("BOOL", [])
    x = builder.addInputTensor("FLOAT", [2])
    then, otherwise = builder.createSubgraphBuilder(), builder.createSubgraphBuilder()
    then.addInputTensorFromParentGraph(x)
    then.addOutputTensor(then.aiGraphcore.scale([x], 2.0))
    otherwise.addInputTensorFromParentGraph(x)
    otherwise.addOutputTensor(otherwise.aiOnnx.neg([x]))
    (y,) = builder.aiOnnx.logical_if([condition], 1, otherwise, then)
    builder.addOutputTensor(y)
    assert builder.getTensorShape(y) == [2]
    values = np.array([1, 2], np.float32)
    for flag, expected in zip((True, False), (2 * values, -values), strict=True):
        feeds = {x: values, condition: np.array(flag)}
        np.testing.assert_array_equal(run(builder.getModelProto(), feeds)[0], expected)
    with pytest.raises(popart_exception, match="no graph around"):
        builder.addInputTensorFromParentGraph(x)


def test_a_loop_repeats_its_body():
    builder = Builder()
    turns = builder.aiOnnx.constant(np.array(3, np.int64))
    go = builder.aiOnnx.constant(np.ones((), bool))
    x = builder.addInputTensor("FLOAT", [2])
    body = builder.createSubgraphBuilder()
    body.setGraphName("body")
    body.addInputTensor("INT64", [])
    condition, state = body.addInputTensor("BOOL", []), body.addInputTensor("FLOAT", [2])
    body.addOutputTensor(body.aiOnnx.identity([condition]))
    body.addOutputTensor(body.aiOnnx.add([state, state]))
    (y,) = builder.aiOnnx.loop([turns, go, x], 1, body)
    builder.addOutputTensor(y)
    assert builder.getTensorShape(y) == [2]
    found = run(builder.getModelProto(), {x: np.array([1, 2], np.float32)})[0]
    np.testing.assert_array_equal(found, [8, 16])


def test_a_scan_walks_over_a_sequence():
    builder = Builder()
    start = builder.addInputTensor("FLOAT", [2])
    rows = builder.addInputTensor("FLOAT", [3, 2])
    body = builder.createSubgraphBuilder()
    total, row = body.addInputTensor("FLOAT", [2]), body.addInputTensor("FLOAT", [2])
    added = body.aiOnnx.add([total, row])
    body.addOutputTensor(added)
    body.addOutputTensor(body.aiOnnx.identity([added]))
    last, sums = builder.aiOnnx.scan([start, rows], 2, body, num_scan_inputs=1)
    builder.addOutputTensor(last)
    builder.addOutputTensor(sums)
    assert (builder.getTensorShape(last), builder.getTensorShape(sums)) == ([2], [3, 2])
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    feeds = {start: np.zeros(2, np.float32), rows: values}
    found = run(builder.getModelProto(), feeds)
    np.testing.assert_array_equal(found[1], values.cumsum(0))


def called():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    callee = builder.createSubgraphBuilder()
    first = callee.addUntypedInputTensor()
    w = callee.addInitializedInputTensor(np.array([2, 3], np.float32), "shared")
    callee.addOutputTensor(callee.aiGraphcore.scale([callee.aiOnnx.mul([first, w])], 10.0))
    return builder, x, callee


def test_calls_share_the_callees_weights():
    builder, x, callee = called()
    (y,) = builder.aiGraphcore.call([x], 1, callee)
    (z,) = builder.aiGraphcore.call([y], 1, callee)
    builder.addOutputTensor(z)
    assert builder.getTensorShape(z) == [2]
    found = run(builder.getModelProto(), {x: np.ones(2, np.float32)})[0]
    np.testing.assert_array_equal(found, [400, 900])


def test_a_call_with_too_few_tensors_is_refused():
    builder, _, callee = called()
    with pytest.raises(
        popart_exception, match=r"For CallOp '', number of inputs \(0\) does not match"
    ):
        builder.aiGraphcore.call([], 1, callee)


def test_operators_of_other_domains():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    outputs = builder.customOp(
        "Cube", 2, "com.acme", [x], {"scale": 1.5, "axes": [0, 1]}, 2, "cube"
    )
    assert outputs == ["cube:0", "cube:1"]
    proto = onnx.load_from_string(builder.getModelProto())
    (node,) = proto.graph.node
    assert (node.domain, node.op_type, len(node.attribute)) == ("com.acme", "Cube", 2)
    assert {"com.acme": 2}.items() <= {
        one.domain: one.version for one in proto.opset_import
    }.items()
    with pytest.raises(popart_exception, match="already defined as 2"):
        builder.customOp("Cube", 3, "com.acme", [x], {})


def test_scopes_and_placement_are_known_where_tensors_are_made():
    builder = Builder()
    assert (builder.getNameScope("w"), builder.hasVirtualGraph()) == ("w", False)
    with builder.nameScope("layer"), builder.nameScope("mlp"), builder.virtualGraph(3):
        assert builder.getNameScope("w") == "layer/mlp/w"
        assert builder.getNameScope() == "layer/mlp/"
        assert (builder.hasVirtualGraph(), builder.getVirtualGraph()) == (True, 3)
    with pytest.raises(popart_exception, match="Virtual graph not set"):
        builder.getVirtualGraph()


def test_the_shape_of_a_slice_at_initializers_is_known():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [8])
    at = [builder.addInitializedInputTensor(np.array([one], np.int32)) for one in (-5, -3, 0)]
    assert builder.getTensorShape(builder.aiOnnx.slice([x, *at])) == [2]
