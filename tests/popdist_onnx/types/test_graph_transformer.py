"""Changed models still run, and give what the model gave before."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from popdist_onnx.builder.builder import Builder
from popdist_onnx.errors import popart_exception
from popdist_onnx.types.graph_transformer import GraphTransformer


def reshaping():
    """Rows picked by int64 indices, reshaped by an int64 initializer; the last row is returned."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Reshape", ["rows", "shape"], ["y"]),
        helper.make_node("Shape", ["y"], ["lengths"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [2])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [6]),
            helper.make_tensor_value_info("lengths", TensorProto.INT64, [1]),
        ],
        [
            numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "table"),
            numpy_helper.from_array(np.array([6], np.int64), "shape"),
            numpy_helper.from_array(np.array([1 << 40], np.int64), "unused"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model.SerializeToString()


def outputs(model, **feeds):
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)


def test_whole_numbers_are_narrowed_where_the_outside_sees_them():
    transformer = GraphTransformer(reshaping())
    with pytest.raises(popart_exception, match="'unused' has numbers that int32 cannot hold"):
        transformer.convertINT64ToINT32()
    transformer = GraphTransformer(reshaping())
    transformer.removeUnusedInputs()
    transformer.convertINT64ToINT32()
    model = transformer.getModelProto()
    stored = {one.name: one.data_type for one in onnx.load_from_string(model).graph.initializer}
    assert stored == {"table": TensorProto.FLOAT, "shape": TensorProto.INT32}
    y, lengths = outputs(model, ids=np.array([3, 0], np.int32))
    np.testing.assert_array_equal(y, [9, 10, 11, 0, 1, 2])
    assert (lengths.dtype, lengths.tolist()) == (np.int32, [6])


def test_numbers_that_do_not_fit_are_clipped_when_asked():
    transformer = GraphTransformer(reshaping())
    transformer.convertINT64ToINT32(clip=True)
    contents = onnx.load_from_string(transformer.getModelProto()).graph.initializer
    (unused,) = [one for one in contents if one.name == "unused"]
    assert numpy_helper.to_array(unused).tolist() == [2**31 - 1]


def small():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2, 3])
    w = builder.addInitializedInputTensor(np.arange(12, dtype=np.float32).reshape(3, 4) / 8)
    half = builder.aiOnnx.constant(np.array(0.5, np.float32))
    y = builder.aiOnnx.mul([builder.aiOnnx.matmul([x, w]), half])
    builder.addOutputTensor(builder.aiOnnx.cast([y], "FLOAT"))
    return builder, x, w


def test_floats_become_halfs_and_back():
    builder, x, _ = small()
    values = np.ones((2, 3), np.float32)
    (expected,) = outputs(builder.getModelProto(), **{x: values})
    transformer = GraphTransformer(builder.getModelProto())
    transformer.convertFloatsToHalfs()
    halved = transformer.getModelProto()
    (found,) = outputs(halved, **{x: values.astype(np.float16)})
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    transformer.convertHalfsToFloats()
    (again,) = outputs(transformer.getModelProto(), **{x: values})
    np.testing.assert_allclose(again, expected)


def test_initializers_become_constants():
    builder, x, w = small()
    transformer = GraphTransformer(builder.getModelProto())
    transformer.convertAllFixedPointInitializersToConstants()
    transformer.convertInitializersToConstants([w])
    model = onnx.load_from_string(transformer.getModelProto())
    assert (len(model.graph.initializer), [one.name for one in model.graph.input]) == (0, [x])
    values = np.ones((2, 3), np.float32)
    (expected,) = outputs(builder.getModelProto(), **{x: values})
    np.testing.assert_array_equal(outputs(transformer.getModelProto(), **{x: values})[0], expected)
    with pytest.raises(popart_exception, match="TensorId nothing not in the model initalizers"):
        transformer.convertInitializersToConstants(["nothing"])


@pytest.mark.parametrize(("opset", "count"), [(10, 5), (15, 3)])
def test_batch_normalisation_gets_the_outputs_of_training(opset, count):
    builder = Builder(opsets={"ai.onnx": opset})
    x = builder.addInputTensor("FLOAT", [2, 3, 4])
    scales = [builder.addInitializedInputTensor(np.ones(3, np.float32)) for _ in range(4)]
    builder.addOutputTensor(builder.aiOnnx.batchnormalization([x, *scales], 1)[0])
    transformer = GraphTransformer(builder.getModelProto())
    transformer.prepareNodesForTraining()
    (node,) = onnx.load_from_string(transformer.getModelProto()).graph.node
    assert len(node.output) == count


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(popart_exception, match="cannot be read"):
        GraphTransformer("nowhere.onnx")
    with pytest.raises(popart_exception, match="cannot be read"):
        GraphTransformer(b"\xff\xff\xff")
    builder, *_ = small()
    builder.saveModelProto(tmp_path / "model.onnx")
    assert GraphTransformer(tmp_path / "model.onnx").getModelProto() == builder.getModelProto()
