"""Copies of models, and passes in their order: what an error says, and what the source keeps."""

import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser

from popdist_onnx.errors import popart_exception, popart_internal_exception
from popdist_onnx.graph.compat import clone
from popdist_onnx.graph.load import read
from popdist_onnx.graph.passes import Pass, Sequential, sound
from popdist_onnx.graph.values import add_shared
from tests.popdist_onnx.nested_weights import nested_model


def with_function():
    """A function that has an attribute, open dimensions, notes, and a weight that is an input."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "my" : 1], producer_name: "somebody">'
        " g (float[N, 2] x, float[2] w) => (float[N, 2] y, float[2] w) {"
        " y = my.scaled <by: float = 2.0> (x, w) }"
        ' <domain: "my", opset_import: ["" : 17]> scaled <by> (a, b) => (c) {'
        " f = Constant <value_float: float = @by> () d = Mul(a, b) c = Mul(d, f) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    proto.graph.node[0].metadata_props.add(key="note", value="of the node")
    proto.metadata_props.add(key="note", value="of the model")
    annotation = proto.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    return proto


def unsorted():
    nodes = [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Abs", ["x"], ["a"])]
    ends = [helper.make_tensor_value_info(name, 1, ["N"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("made", [with_function, lambda: nested_model(4), unsorted])
def test_a_clone_says_the_same_and_shares_only_the_weights(made, caplog):
    caplog.set_level(logging.ERROR)
    model = ir.from_proto(made())
    before = ir.to_proto(model)
    copied = clone(model)
    assert ir.to_proto(copied) == before
    for name, value in copied.graph.initializers.items():
        assert value.const_value is model.graph.initializers[name].const_value
    copied.metadata_props.clear()
    copied.graph.inputs[0].shape = ir.Shape([7])
    for node in list(copied.graph.all_nodes()):
        node.op_type, node.metadata_props["note"] = "Other", "changed"
        node.replace_input_with(0, None) if node.inputs else None
    copied.graph.initializers.clear()
    assert ir.to_proto(model) == before


def test_a_model_in_memory_is_read_without_a_change_of_it():
    given = ir.from_proto(with_function())
    before = ir.to_proto(given)
    model = read(given)
    assert [node.op_type for node in model.graph] == ["Constant", "Mul", "Mul"]
    assert ir.to_proto(given) == before
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


TENSORS = [
    (ir.serde.TensorProtoTensor(numpy_helper.from_array(np.arange(3), "old")), [0, 1, 2]),
    (ir.Tensor(np.arange(3), name="old"), [0, 1, 2]),
    (ir.StringTensor([b"a", b"b"], shape=ir.Shape([2]), name="old"), ["a", "b"]),
]


@pytest.mark.parametrize(("tensor", "wanted"), TENSORS, ids=lambda one: type(one).__name__)
def test_two_weights_of_one_content_have_their_own_names(tensor, wanted):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 17}, name="g")
    for name in ("first", "second"):
        add_shared(graph, name, tensor)
    stored = ir.to_proto(ir.Model(graph, ir_version=8)).graph.initializer
    assert [one.name for one in stored] == ["first", "second"]
    for one in stored:
        np.testing.assert_array_equal(numpy_helper.to_array(one), wanted)
    assert tensor.name == "old"


class Nothing(Pass):
    def change(self, _model):
        return False


class Stumble(Pass):
    def __init__(self, error):
        self.error = error

    def change(self, _model):
        raise self.error


def test_an_error_names_the_passes_before_it():
    model = ir.from_proto(unsorted())
    model.graph.sort()
    with pytest.raises(popart_internal_exception, match="PD611") as raised, sound(model):
        Sequential(Nothing(), Stumble(KeyError("lost")))(model)
    said = str(raised.value)
    assert "'Stumble' pass after the following passes: ['Nothing']: KeyError: 'lost'" in said


def test_errors_for_users_come_through_as_they_are():
    model, error = ir.from_proto(unsorted()), popart_exception("PD521", "an old opset")
    with pytest.raises(popart_exception) as raised, sound(model):
        Sequential(Nothing(), Stumble(error))(model)
    assert raised.value is error


def test_the_reason_of_a_malformed_model_in_memory_is_that_of_the_checker():
    model = ir.from_proto(unsorted())
    complaint = "malformed: Nodes in a graph must be topologically sorted"
    with pytest.raises(popart_exception, match=complaint), sound(model):
        raise KeyError("a")
