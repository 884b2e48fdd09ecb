"""Models as they are for inference: with running statistics, and without dropout.

`from_torch` exports a module in training mode, which the file then states.
"""

from __future__ import annotations

import onnx
from onnx import helper, numpy_helper

from popdist_onnx.graph.compat import graphs_within

_RATIO_AND_DATA = 2
_MEAN = 3
"""The inputs of dropout without its mode, and the first running statistic of normalisation."""


def in_inference_mode(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model, in inference mode; the model itself where it has no other mode."""
    if not modes(proto):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for graph, node in _training(made):
        if node.op_type == "Dropout":
            del node.input[_RATIO_AND_DATA:]
        else:
            _use_running_statistics(graph, node)
    return made


def _use_running_statistics(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    place = next(index for index, one in enumerate(graph.node) if one.output[0] == node.output[0])
    # A module that is used several times passes its statistics on.
    for given, updated in zip(node.input[_MEAN:], node.output[1:], strict=False):
        if updated:
            graph.node.insert(place + 1, helper.make_node("Identity", [given], [updated]))
    del node.output[1:]
    for one in node.attribute:
        if one.name == "training_mode":
            one.i = 0


def modes(proto: onnx.ModelProto) -> list[str]:
    """The operators in training mode."""
    return sorted({node.op_type for _, node in _training(proto)})


def _training(proto: onnx.ModelProto) -> list[tuple[onnx.GraphProto, onnx.NodeProto]]:
    graphs = list(graphs_within(proto.graph))
    true = {one.name for graph in graphs for one in graph.initializer if _is_true(one)}
    nodes = [(graph, node) for graph in graphs for node in graph.node]
    true |= {
        node.output[0]
        for _, node in nodes
        if node.op_type == "Constant" and any(_is_true(one.t) for one in node.attribute)
    }
    return [(graph, node) for graph, node in nodes if _trains(node, true)]


def _trains(node: onnx.NodeProto, true: set[str]) -> bool:
    if node.domain:
        return False
    if node.op_type == "Dropout":
        return any(name in true for name in node.input[_RATIO_AND_DATA:])
    stated = any(one.name == "training_mode" and one.i for one in node.attribute)
    return node.op_type == "BatchNormalization" and (stated or any(node.output[1:]))


def _is_true(tensor: onnx.TensorProto) -> bool:
    single = tensor.data_type == onnx.TensorProto.BOOL and all(one == 1 for one in tensor.dims)
    return single and bool(numpy_helper.to_array(tensor).item())
