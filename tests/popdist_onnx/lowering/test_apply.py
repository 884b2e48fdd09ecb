"""The pass as a whole: what it keeps, what it leaves, and what it says."""

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from popdist_onnx.builder import Builder
from popdist_onnx.errors import popart_exception, popart_internal_exception
from popdist_onnx.graph.load import load
from popdist_onnx.lowering import lower


def test_models_of_older_opsets_are_no_business_of_this_pass():
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 11}), ir_version=4)
    with pytest.raises(popart_internal_exception, match="older opset"):
        lower(model)


def test_shapes_that_must_be_known_are_asked_for():
    node = helper.make_node("ReduceMedian", ["x"], ["y", "i"], domain="ai.graphcore")
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.graphcore", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    with pytest.raises(popart_exception, match="the shape of tensor 'x' is not known"):
        lower(load(model))


def test_an_operator_that_does_not_exist():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    builder.customOp("Glu", 1, "ai.graphcore", [x], {})
    with pytest.raises(popart_exception, match="no operator Glu") as error:
        lower(load(builder.getModelProto()))
    assert "did you mean Gelu?" in str(error.value)


def test_operators_to_keep_stay_until_they_are_lowered():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    y = builder.aiGraphcore.scale([builder.aiGraphcore.gelu([x])], 2.0)
    builder.addOutputTensor(y)
    model = lower(load(builder.getModelProto()), keep=["Scale"])
    assert [node.op_type for node in model.graph if node.domain == "ai.graphcore"] == ["Scale"]
    lower(model)
    assert [value.name for value in model.graph.outputs] == [y]
    assert "ai.graphcore" not in {node.domain for node in ir.to_proto(model).graph.node}
