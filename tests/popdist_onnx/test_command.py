"""``python -m popdist_onnx``."""

import onnx
import pytest
from onnx import TensorProto, helper

from popdist_onnx.__main__ import main
from tests.popdist_onnx import networks


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(networks.perceptron(4))
    return path


def test_a_training_graph_is_written_and_described(model, capsys):
    target = model.with_name("out.onnx")
    arguments = ["graph", model, "-o", target, "--loss", "loss", "--batch-size", "4"]
    assert main([str(a) for a in (*arguments, "--optimizer", "adam", "--host-allreduce")]) == 0
    said = capsys.readouterr().out
    assert "w1      DOUBLE [5, 8]   Gradient___w1" in said
    assert "Accl1, Accl2, Step" in said
    graph = onnx.load(target).graph
    assert sum(node.op_type == "GradCopyToHost" for node in graph.node) == 4
    assert {"UpdatedVar___w1", "UpdatedVar___Accl1___w1"} <= {v.name for v in graph.output}


def test_operators_with_and_without_a_gradient_are_told_apart(model, tmp_path, capsys):
    assert main(["operators", str(model)]) == 0
    assert "ai.onnx.Gemm        2      yes" in capsys.readouterr().out
    node = helper.make_node("Mystery", ["x"], ["y"], domain="my.domain", name="odd one")
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my.domain", 1)]
    odd = helper.make_model(helper.make_graph([node], "g", [info], [result]), opset_imports=opsets)
    path = tmp_path / "odd.onnx"
    onnx.save(odd, path)
    assert main(["operators", str(path)]) == 1
    assert "NO: odd one" in capsys.readouterr().out


def test_what_is_no_model_is_said(tmp_path, capsys):
    path = tmp_path / "text.onnx"
    path.write_text("this is no model")
    assert main(["operators", str(path)]) == 1
    assert "popdist_onnx: " in capsys.readouterr().err
