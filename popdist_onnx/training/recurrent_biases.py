"""Lets a recurrent layer of Keras, which has one bias, train as in Keras.

ONNX has two biases, of the input and of the hidden state, and the layer adds them. tf2onnx writes
the bias of Keras as the first one, and zeros as the second. With a gradient for both their sum
changes twice as fast. The second half is therefore multiplied by zero, which stops its gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from popdist_onnx.graph.large_files import content
from popdist_onnx.graph.torch_files import FROM_TENSORFLOW

if TYPE_CHECKING:
    from popdist_onnx.training.data import Array

_BIAS = 3


def with_single_biases(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a file of tf2onnx in which second biases do not train; else the model itself."""
    stored = {one.name: one for one in proto.graph.initializer}
    if proto.producer_name != FROM_TENSORFLOW:
        return proto
    found = {
        node.input[_BIAS]: stored[node.input[_BIAS]]
        for node in proto.graph.node
        if _has_one_bias(node) and len(node.input) > _BIAS and node.input[_BIAS] in stored
    }
    found = {name: one for name, one in found.items() if not _second_of(content(one)).any()}
    if not found:
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for node in made.graph.node:
        for index, name in enumerate(node.input):
            if name in found and index == _BIAS and _has_one_bias(node):
                node.input[index] = f"{name}/one"
    for name, one in found.items():
        kept = np.ones_like(content(one))
        _second_of(kept)[...] = 0
        mask = numpy_helper.from_array(kept, f"{name}/kept")
        nodes = [
            helper.make_node("Constant", [], [f"{name}/kept"], value=mask),
            helper.make_node("Mul", [name, f"{name}/kept"], [f"{name}/one"]),
        ]
        for node in reversed(nodes):
            made.graph.node.insert(0, node)
    return made


def _has_one_bias(node: onnx.NodeProto) -> bool:
    """Whether Keras has a single bias here; a GRU that resets after its product has two."""
    after = any(one.name == "linear_before_reset" and one.i for one in node.attribute)
    return not node.domain and (
        node.op_type in ("LSTM", "RNN") or (node.op_type == "GRU" and not after)
    )


def _second_of(biases: Array) -> Array:
    """The biases of the hidden state, of ``[directions, 2 * gates * hidden]``."""
    return biases[:, biases.shape[1] // 2 :]
