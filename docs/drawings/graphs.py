"""Pictures of a real graph after each pass: a small model goes through the passes themselves."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from svg import BLUE, GREEN, ORANGE, PURPLE, Picture  # beside this script

import popdist_onnx
from popdist_onnx.graph import names
from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.host_allreduce import insert_host_allreduce
from popdist_onnx.transforms.loss import set_loss
from popdist_onnx.transforms.optimizer import grow_updates

if TYPE_CHECKING:
    import onnx_ir as ir

BOX, GAP, LAYER = 128, 12, 58


def loaded_picture() -> str:
    """The model as it was loaded."""
    return _drawn(set_loss(load(_model()), "loss"), "The model: a layer and its loss")


def autodiff_picture() -> str:
    """The same after autodiff."""
    return _drawn(autodiff(set_loss(load(_model()), "loss")), "After autodiff: gradients")


def exchange_picture() -> str:
    """The same with updates and the exchange on the host."""
    model = autodiff(set_loss(load(_model()), "loss"))
    model = grow_updates(model, popdist_onnx.SGD({"defaultLearningRate": (0.1, False)}))
    return _drawn(insert_host_allreduce(model), "After the optimizer and host-allreduce passes")


def _model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("Relu", ["y"], ["h"]),
            helper.make_node("Mul", ["h", "h"], ["squares"]),
            helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 3])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.ones((3, 2), np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def _drawn(model: ir.Model, title: str) -> str:
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    edges = {node: _before(node, nodes) for node in nodes}
    depth: dict[ir.Node, int] = {}
    for node in nodes:  # in an order in which they run
        depth[node] = 1 + max((depth[producer] for producer in edges[node]), default=-1)
    layers: dict[int, list[ir.Node]] = defaultdict(list)
    for node in nodes:
        layers[depth[node]].append(node)
    columns = max(map(len, layers.values()))
    width = max(3, columns) * (BOX + GAP) + 260
    picture = Picture(width, len(layers) * LAYER + 40, title)
    picture.words(10, 18, title, place="start", size=13)
    middle = {
        node: (
            20 + (column + (columns - len(layer)) / 2 + 0.5) * (BOX + GAP),
            36 + LAYER * number,
        )
        for number, layer in layers.items()
        for column, node in enumerate(layer)
    }
    for node, (x, y) in middle.items():
        for producer in edges[node]:
            from_x, from_y = middle[producer]
            picture.arrow(from_x, from_y + 30, x, y)
    for node, (x, y) in middle.items():
        picture.labelled(x - BOX / 2, y, BOX, 30, node.op_type, _shade(node))
    for row, (shade, meaning) in enumerate(_MEANINGS):
        picture.labelled(width - 210, 30 + 30 * row, 200, 24, meaning, shade)
    return picture.text()


def _before(node: ir.Node, nodes: list[ir.Node]) -> list[ir.Node]:
    """What has to run before a node: who makes its inputs, and for copies the order of the pass."""
    makers = [value.producer() for value in node.inputs if value is not None]
    found = [maker for maker in makers if maker in nodes]
    order = {"Sync": "GradCopyToHost", "GradCopyFromHost": "Sync"}.get(node.op_type)
    return found + [other for other in nodes if other.op_type == order]


_MEANINGS = (
    (BLUE, "forward"),
    (GREEN, "backward (autodiff)"),
    (PURPLE, "update (optimizer)"),
    (ORANGE, "to and from the host"),
)


def _shade(node: ir.Node) -> str:
    if node.op_type in {"GradCopyToHost", "GradCopyFromHost", "Sync"}:
        return ORANGE
    if node.metadata_props.get(names.PHASE) == "update":
        return PURPLE
    return GREEN if node.metadata_props.get(names.PASS) == "backward" else BLUE


PICTURES = {
    "graph-1-loaded": loaded_picture,
    "graph-2-autodiff": autodiff_picture,
    "graph-3-exchange": exchange_picture,
}
"""By the name of the file."""
