"""Weights that a file does not store, but fills with one number: made initializers again.

The model-zoo networks that come with onnx are such files. A node that fills a tensor is no weight,
so that without this a model would train what little is stored, or nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("popdist.onnx")

_WEIGHTS = {
    "BatchNormalization": (1, 2, 3, 4),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "InstanceNormalization": (1, 2),
    "MatMul": (1,),
    "PRelu": (1,),
}
"""The inputs of operators where nothing but a weight is expected."""


def with_stored_fills(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Stores weights that nodes fill with one number.

    Args:
        proto: The model.

    Returns:
        The model itself, or a copy in which ``ConstantOfShape`` nodes of a fixed shape that only
        feed weights of layers have become initializers.
    """
    graph = proto.graph
    shapes = {one.name: one for one in graph.initializer if one.data_type == onnx.TensorProto.INT64}
    users: dict[str, list[bool]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            users.setdefault(name, []).append(index in _WEIGHTS.get(node.op_type, ()))
    outputs = {value.name for value in graph.output}
    fills = [
        node
        for node in graph.node
        if node.op_type == "ConstantOfShape"
        and node.input[0] in shapes
        and node.output[0] not in outputs
        and all(users.get(node.output[0], [False]))
    ]
    return _stored(proto, fills, shapes) if fills else proto


def _stored(
    proto: onnx.ModelProto, fills: list[onnx.NodeProto], shapes: Mapping[str, onnx.TensorProto]
) -> onnx.ModelProto:
    logger.warning(
        "%d weights of the model are no initializers but fills of one number; they are stored as "
        "weights, and start from that number",
        len(fills),
    )
    stored = onnx.ModelProto()
    stored.CopyFrom(proto)
    names = {node.output[0] for node in fills}
    kept = [node for node in stored.graph.node if not names & set(node.output)]
    del stored.graph.node[:]
    stored.graph.node.extend(kept)
    for node in fills:
        shape = tuple(numpy_helper.to_array(shapes[node.input[0]]))
        values = [numpy_helper.to_array(one.t) for one in node.attribute if one.name == "value"]
        number = values[0].reshape(()) if values else np.float32(0)
        content = np.full(shape, number)
        stored.graph.initializer.append(numpy_helper.from_array(content, node.output[0]))
    return stored
