"""Ids as published: operator and output number, scopes, and a number where a name is taken."""

import numpy as np
import pytest

from popdist_onnx.builder.builder import Builder
from popdist_onnx.builder.naming import DebugContext
from popdist_onnx.errors import popart_exception
from popdist_onnx.types.tensor_info import TensorInfo


def test_inputs_are_named_and_numbered():
    builder = Builder()
    info = TensorInfo("FLOAT", [2])
    assert builder.addInputTensor(info) == "input"
    assert builder.addInputTensor("FLOAT", [2]) == "input/1"
    assert builder.addInputTensor(info, "data") == "data"
    assert builder.addInputTensor("FLOAT", [2], debugContext="data") == "data/1"
    assert builder.addInputTensor(info, debugPrefix="old") == "old"
    assert builder.addInputTensor(info, debugContext=DebugContext("new")) == "new"
    weight = np.ones(2, np.float32)
    assert builder.addInitializedInputTensor(weight) == "init_input"
    assert builder.addInitializedInputTensor(weight) == "init_input/1"
    assert builder.addInitializedInputTensor(weight, "w") == "w"


def test_outputs_are_named_after_operator_or_context():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    assert builder.aiOnnx.add([x, x]) == "Add:0"
    assert builder.aiOnnx.add([x, x]) == "Add:0/1"
    assert builder.aiOnnx.add([x, x], "sum") == "sum:0"
    assert builder.aiOnnx.add([x, x], debugPrefix="sum") == "sum:0/1"
    split = builder.aiOnnx.split([x], num_outputs=2)
    assert split == ["Split:0", "Split:1"]


def test_scopes_nest():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    with builder.nameScope("outer"):
        with builder.nameScope("inner"):
            assert builder.aiOnnx.neg([x]) == "outer/inner/Neg:0"
        assert builder.aiOnnx.neg([x]) == "outer/Neg:0"
        assert builder.addInputTensor("FLOAT", [2]) == "outer/input"
    assert builder.aiOnnx.neg([x]) == "Neg:0"


def test_a_context_can_be_entered_again_and_inside_of_itself():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    scope, stage = builder.nameScope("s"), builder.pipelineStage(1)
    for expected in ("s/Neg:0", "s/Neg:0/1"):
        with scope, stage:
            assert builder.aiOnnx.neg([x]) == expected
            assert builder.getPipelineStage() == 1
    with scope, scope:
        assert builder.aiOnnx.neg([x]) == "s/s/Neg:0"
    assert builder.aiOnnx.neg([x]) == "Neg:0"


def test_subgraphs_share_ids_with_their_parents():
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2])
    inner = builder.createSubgraphBuilder()
    assert inner.addUntypedInputTensor() == "input/1"
    inner.addInputTensorFromParentGraph(x)
    assert inner.aiOnnx.neg([x]) == "Neg:0"
    assert builder.aiOnnx.neg([x]) == "Neg:0/1"


@pytest.mark.parametrize("prefix", ["Gradient___", "UpdatedVar___", "Accl1___", "Step___"])
def test_names_that_training_uses_are_refused(prefix):
    with pytest.raises(popart_exception, match="reserved"):
        Builder().addInputTensor("FLOAT", [2], prefix + "x")
    with pytest.raises(popart_exception, match="reserved"):
        Builder().addInitializedInputTensor(np.ones(2, np.float32), prefix + "x")


def test_an_unknown_id_lists_those_that_exist():
    builder = Builder()
    builder.addInputTensor("FLOAT", [2], "image")
    with pytest.raises(popart_exception, match=r"^Unknown tensor 'imgae'") as error:
        builder.aiOnnx.relu(["imgae"])
    assert "the tensors image" in str(error.value)
    assert "did you mean 'image'?" in str(error.value)
    with pytest.raises(popart_exception, match="Unknown tensor"):
        builder.addOutputTensor("label")
