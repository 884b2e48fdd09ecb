"""Methods of ai.graphcore: the published names, and those no host can run."""

import inspect

import numpy as np
import onnx
import pytest

from popdist_onnx.builder.builder import Builder
from popdist_onnx.builder.graphcore_methods import METHODS, ai_graphcore
from popdist_onnx.builder.methods import operators
from popdist_onnx.errors import popart_exception
from popdist_onnx.lowering import OPERATORS
from popdist_onnx.types.enums import ReductionType

PUBLISHED = [
    "abort",
    "atan2",
    "bitwiseand",
    "bitwisenot",
    "bitwiseor",
    "bitwisexnor",
    "bitwisexor",
    "bucketize",
    "call",
    "ctcbeamsearchdecoder",
    "ctcloss",
    "depthtospace",
    "detach",
    "dynamicadd",
    "dynamicslice",
    "dynamicupdate",
    "dynamiczero",
    "expm1",
    "fmod",
    "gelu",
    "geluerf",
    "groupedgather",
    "groupedscatterreduce",
    "groupnormalization",
    "identityloss",
    "incrementmod",
    "init",
    "l1loss",
    "log1p",
    "lstm",
    "multiconv",
    "nearbyint",
    "nllloss",
    "nop",
    "normalize_image",
    "packedDataBlock",
    "printtensor",
    "reducemedian",
    "remainder",
    "replicatedallreduce",
    "reshape",
    "reverse",
    "round",
    "scale",
    "scaledadd",
    "scatterreduce",
    "sequenceslice",
    "shapeddropout",
    "slice",
    "sort",
    "subsample",
    "swish",
    "tensorremap",
]


def test_the_methods_are_the_published_ones():
    assert operators(ai_graphcore()) == sorted(PUBLISHED)
    assert Builder().aiGraphcoreOpset1.version == 1


def test_each_operator_is_lowered():
    for method in METHODS:
        assert method.op_type in OPERATORS, method.name


def test_nodes_carry_domain_operator_and_attributes():
    builder = Builder()
    p, label = builder.addInputTensor("FLOAT", [2, 3]), builder.addInputTensor("INT32", [2])
    loss = builder.aiGraphcore.nllloss([p, label], ReductionType.Sum, ignoreIndex=-1)
    assert loss == "Nll:0"
    (node,) = onnx.load_from_string(builder.getModelProto()).graph.node
    assert (node.op_type, node.domain) == ("Nll", "ai.graphcore")
    found = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    assert found == {"reduction": b"Sum", "ignoreIndex": -1, "inputIsLogProbability": 0}


def test_the_published_signature_of_nllloss():
    assert str(inspect.signature(Builder().aiGraphcore.nllloss)) == (
        "(args, reduction=<ReductionType.Mean: 0>, ignoreIndex=None, inputIsLogProbability=False,"
        " debugContext='')"
    )


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda ops, x: ops.scale([x], "a"), "a number for scale"),
        (lambda ops, x: ops.identityloss([x], "mean"), "a ReductionType for reduction"),
        (lambda ops, _: ops.init([1], "FLOAT", 1), "takes an InitType"),
        (lambda ops, x: ops.groupnormalization([x, x, x], group=1), "did you mean num_groups"),
        (lambda ops, x: ops.scatterreduce([x, x], 2, reduction="mul"), "ScatterReduction"),
        (lambda ops, x: ops.gelu([x, x]), "given 2, and takes 1"),
    ],
)
def test_arguments_that_do_not_fit(call, complaint):
    builder = Builder()
    x = builder.addInputTensor("FLOAT", [2, 2])
    with pytest.raises(popart_exception, match=complaint):
        call(builder.aiGraphcore, x)


def test_mistakes_in_shapes_are_found_while_building():
    builder = Builder()
    p, label = builder.addInputTensor("FLOAT", [2, 3]), builder.addInputTensor("INT32", [3])
    with pytest.raises(popart_exception, match="one label per row"):
        builder.aiGraphcore.nllloss([p, label])
    assert builder.getValueTensorIds() == []


def test_float_arrays_of_other_widths_are_taken():
    builder = Builder()
    x = builder.addInitializedInputTensor(np.ones((2, 2), np.float16))
    assert builder.getTensorDtypeString(builder.aiGraphcore.gelu([x])) == "float16"
