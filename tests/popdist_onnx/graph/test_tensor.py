"""Writing nodes: names, types, constants."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from popdist_onnx.errors import popart_internal_exception
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape


@pytest.fixture
def tape():
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="g")
    return Tape(graph, scope="s/")


def test_formulas_become_nodes_with_types_and_shapes(tape):
    x = tape.input("x", ir.DataType.DOUBLE, [2, "n"])
    y = 1 - x * 0.5
    assert [node.op_type for node in tape.graph if node.op_type != "Constant"] == ["Mul", "Sub"]
    assert y.dtype == ir.DataType.DOUBLE
    assert y.dims == (2, "n")
    assert y.name.startswith("s/")


def test_numbers_take_the_type_of_their_neighbour_and_are_written_once(tape):
    x = tape.input("x", ir.DataType.FLOAT16, [2])
    x + 1
    x + 1
    (one,) = [node for node in tape.graph if node.op_type == "Constant"]
    assert one.outputs[0].dtype == ir.DataType.FLOAT16


def test_names_are_never_taken_twice(tape):
    x = tape.input("x", ir.DataType.FLOAT, [2])
    assert tape.Relu(x).name != tape.Relu(x).name
    with pytest.raises(ValueError, match="'x'"):
        tape.many("Relu", ["x"], x)


def test_a_fresh_value_is_renamed_and_a_named_one_copied(tape):
    x = tape.input("x", ir.DataType.FLOAT, [2])
    y = tape.rename(tape.Relu(x), "y")
    z = tape.rename(y, "z")
    assert [node.op_type for node in tape.graph] == ["Relu", "Identity"]
    assert (y.name, z.name) == ("y", "z")


def test_a_node_gives_way_to_others_of_the_same_name(tape):
    x = tape.input("x", ir.DataType.FLOAT, [2])
    (old,) = tape.many("Exp", ["y"], x)
    tape.graph.outputs.append(old.value)
    reader = tape.Neg(old)
    node = old.value.producer()
    with tape.at(node, "y/"):
        tape.substitute(node, [tape.Relu(x)])
    assert [one.op_type for one in tape.graph] == ["Relu", "Neg"]
    assert tape.graph.outputs[0].name == "y"
    assert reader.value.producer().inputs[0] is tape.graph.outputs[0]


def test_a_pass_that_spoils_the_order_is_caught(tape):
    class Spoil(Pass):
        def change(self, model):
            first, second = model.graph
            model.graph.remove(first)
            model.graph.insert_after(second, first)
            return True

    x = tape.input("x", ir.DataType.FLOAT, [2])
    tape.graph.outputs.append(tape.Neg(tape.Relu(x)).value)
    with pytest.raises(popart_internal_exception, match="Spoil left an invalid graph"):
        Spoil()(ir.Model(tape.graph, ir_version=8))
