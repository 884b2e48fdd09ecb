"""Attributes of nodes, and annotations that every runtime passes by."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from popdist_onnx.builder.builder import Builder
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load, save


@pytest.fixture
def built():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [1, 1, 3, 3])
    w = builder.addInitializedInputTensor(np.ones((1, 1, 2, 2), np.float32))
    return builder, x, builder.aiOnnx.conv([x, w], group=1)


@pytest.mark.parametrize(
    ("value", "getter"),
    [
        (5, "getInt64NodeAttribute"),
        ([1, 2], "getInt64VectorNodeAttribute"),
        (0.5, "getFloatNodeAttribute"),
        ([0.5, 1.0], "getFloatVectorNodeAttribute"),
        ("text", "getStringNodeAttribute"),
        (["a", "b"], "getStringVectorNodeAttribute"),
        (True, "getBoolNodeAttribute"),
    ],
)
def test_attributes_come_back_with_their_type(built, value, getter):
    builder, _, y = built
    builder.addNodeAttribute("note", value, {y})
    assert builder.nodeHasAttribute("note", {y})
    assert "note" in builder.getAllNodeAttributeNames({y})
    assert getattr(builder, getter)("note", {y}) == value
    builder.removeNodeAttribute("note", {y})
    assert not builder.nodeHasAttribute("note", {y})


def test_attributes_of_the_schema_are_attributes_in_the_file(built):
    builder, _, y = built
    assert builder.getInt64NodeAttribute("group", {y}) == 1
    builder.addNodeAttribute("pads", [1, 1, 1, 1], {y})
    (node,) = onnx.load_from_string(builder.getModelProto()).graph.node
    assert {one.name for one in node.attribute} == {"group", "pads"}


def test_mistakes_are_named(built):
    builder, x, y = built
    builder.addNodeAttribute("note", 1, {y})
    with pytest.raises(popart_exception, match="already has attribute note"):
        builder.addNodeAttribute("note", 2, {y})
    with pytest.raises(popart_exception, match="does not have an attribute other"):
        builder.getInt64NodeAttribute("other", {y})
    with pytest.raises(popart_exception, match="Cannot remove attribute other as it does"):
        builder.removeNodeAttribute("other", {y})
    with pytest.raises(popart_exception, match="of another type"):
        builder.getStringNodeAttribute("note", {y})
    with pytest.raises(popart_exception, match="of another type"):
        builder.getInt64VectorNodeAttribute("note", {y})
    with pytest.raises(popart_exception, match="Could not find a node"):
        builder.addNodeAttribute("note", 1, {x})
    with pytest.raises(popart_exception, match="Could not find a node"):
        builder.addNodeAttribute("note", 1, {y, builder.aiOnnx.relu([y])})
    with pytest.raises(popart_exception, match="Unknown tensor"):
        builder.nodeHasAttribute("note", {"nothing"})
    with pytest.raises(popart_exception, match="no attribute can hold"):
        builder.addNodeAttribute("thing", object(), {y})


def test_placement_is_kept_and_changes_nothing(built):
    builder, x, y = built
    builder.virtualGraph(y, 3)
    builder.setPartialsType(y, "HALF")
    builder.setAvailableMemoryProportion(y, 0.2)
    builder.setSerializeMatMul({y}, "input_channels", 2)
    builder.excludePatterns(y, ["InPlace"])
    builder.recomputeOutputInBackwardPass(y)
    builder.setInplacePreferences(y, {"ReluInplace": 1.0})
    with builder.pipelineStage(1), builder.outlineAttributes({"layer": 2}):
        assert builder.getPipelineStage() == 1
        with builder.virtualGraph(0), builder.executionPhase(4), builder.schedulePriority(5):
            z = builder.aiOnnx.relu([y])
        bare = builder.aiOnnx.relu([z])
    assert not builder.hasPipelineStage()
    assert (builder.getVirtualGraph(y), builder.getPartialsType(y)) == (3, "HALF")
    assert builder.getRecomputeOutputInBackwardPass(y)
    assert builder.getVirtualGraph(z) == 0
    assert not builder.hasVirtualGraph(bare)
    assert builder.nodeHasAttribute("__pipeline_stage", {bare})
    builder.addOutputTensor(builder.checkpointOutput([bare])[0])
    proto = onnx.load_from_string(builder.getModelProto())
    onnx.checker.check_model(proto, full_check=True)
    found = {one.key: one.value for one in proto.graph.node[1].metadata_props}
    assert found["__ipu_number"] == "0"
    session = ort.InferenceSession(builder.getModelProto(), providers=["CPUExecutionProvider"])
    assert session.run(None, {x: np.ones((1, 1, 3, 3), np.float32)})[0].max() == 4
    assert "__ipu_number" in next(iter(load(proto).graph)).metadata_props


@pytest.mark.parametrize(
    "call",
    [
        lambda builder, _: builder.virtualGraph(),
        lambda builder, y: builder.setAvailableMemoryProportion(y, 0),
        lambda builder, y: builder.setSerializeMatMul(y, "sideways"),
        lambda builder, _: builder.getPipelineStage(),
    ],
)
def test_annotations_that_make_no_sense(built, call):
    builder, _, y = built
    with pytest.raises(popart_exception):
        call(builder, y)


def test_files_that_popart_annotated_load_and_run():
    node = onnx.helper.make_node("Relu", ["x"], ["y"], __ipu_number=2, __exclude_patterns=["A"])
    ends = [onnx.helper.make_tensor_value_info(one, onnx.TensorProto.FLOAT, [2]) for one in "xy"]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
    opset = onnx.helper.make_opsetid("", 10)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=4).SerializeToString()
    assert Builder(model).getVirtualGraph({"y"}) == 2
    proto = save(load(model))
    onnx.checker.check_model(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": np.array([-1, 1], np.float32)})[0]
    np.testing.assert_array_equal(found, [0, 1])
