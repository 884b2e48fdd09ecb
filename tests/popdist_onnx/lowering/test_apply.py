"""The pass as a whole: what it keeps, what it leaves, and what it says."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from popdist_onnx.builder.builder import Builder
from popdist_onnx.errors import popart_exception, popart_internal_exception
from popdist_onnx.graph.load import load
from popdist_onnx.lowering import lower
from tests.popdist_onnx.graphcore import run


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


RNG = np.random.default_rng(0)
# Three packed runs of the first operand, three of the second, and where the results go.
FROM, LENGTHS = [[4, 0, 1], [2, 0, 4]], [[3, 2, 0], [2, 4, 1]]
TO, KEPT = [5, 0, 3], [2, 3, 1]


def packed(batch, first=None, arguments=None):
    """A product of each sequence with the sum of another one, times a weight of the callee."""
    builder = Builder()
    data = [RNG.standard_normal((7, 2)), RNG.standard_normal((6, 2))]
    data = [one.astype(np.float32) for one in data]
    numbers = [*FROM, *LENGTHS, TO, KEPT]
    numbers[2] = first or numbers[2]
    arrays = [np.array(one, np.uint32) for one in numbers]
    given = [data[0], arrays[0], arrays[2], data[1], arrays[1], arrays[3], *arrays[4:]]
    kinds = ["FLOAT", "UINT32", "UINT32", "FLOAT", "UINT32", "UINT32", "UINT32", "UINT32"]
    ids = [builder.addInputTensor(k, one.shape) for k, one in zip(kinds, given, strict=True)]
    body = builder.createSubgraphBuilder()
    a = body.addInputTensor("FLOAT", [batch, 3, 2])
    b = body.addInputTensor("FLOAT", [batch, 4, 2])
    w = body.addInitializedInputTensor(np.array([2, -1], np.float32), "w")
    summed = body.aiOnnx.reducesum([b], [1], 1)
    body.addOutputTensor(body.aiOnnx.mul([body.aiOnnx.mul([a, summed]), w]))
    chosen = ids if arguments is None else arguments(ids)
    y = builder.aiGraphcore.packedDataBlock(chosen, [3, 4], 8, batch, body)
    builder.addOutputTensor(y)
    assert builder.getTensorShape(y) == [8, 2]
    assert builder.getTrainableTensorIds() in ([], ["w"])
    return run(builder.getModelProto(), dict(zip(ids, given, strict=True)))[0], data


@pytest.mark.parametrize("batch", [1, 3])
def test_packed_sequences_are_those_of_numpy(batch):
    found, (a, b) = packed(batch)
    expected = np.zeros((8, 2), np.float32)
    for number, (to, kept) in enumerate(zip(TO, KEPT, strict=True)):
        (at, of), (length, other) = (
            [one[number] for one in FROM],
            [one[number] for one in LENGTHS],
        )
        padded = np.zeros((3, 2), np.float32)
        padded[:length] = a[at : at + length]
        made = padded * b[of : of + other].sum(0) * np.array([2, -1], np.float32)
        expected[to : to + kept] = made[:kept]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_packed_sequences_that_do_not_fit():
    with pytest.raises(Exception, match="out of data bounds"):
        packed(1, first=[4, 2, 0])
    with pytest.raises(popart_exception, match="divides the number of sequences"):
        packed(2)
    with pytest.raises(popart_exception, match="then offsets and lengths in the result"):
        packed(1, arguments=lambda ids: ids[:7])
    with pytest.raises(popart_exception, match="one offset and one length for each sequence"):
        packed(1, arguments=lambda ids: [ids[0], ids[3], *ids[1:3], *ids[4:]])
