"""Weights that an exporter wrote once because they begin with equal content."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper, parser

from popdist_onnx.graph.load import load, untie

RANDOM = np.array([1, 2], np.float32)


def parsed(**weights):
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {'
        " b = Identity(a) c = Mul(x, a) y = Mul(c, b) }"
    )
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return proto


def test_copies_of_one_repeated_number_become_weights():
    proto = parsed(a=np.ones(2, np.float32))
    model = load(proto)
    assert list(model.graph.initializers) == ["a", "b"]
    assert [node.op_type for node in model.graph] == ["Mul", "Mul"]
    assert [tensor.name for tensor in proto.graph.initializer] == ["a"]


def test_weights_tied_on_purpose_stay_tied():
    proto = parsed(a=RANDOM)
    assert untie(proto) is proto
