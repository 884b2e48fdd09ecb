"""Weights that an exporter wrote once because they begin with equal content become several again.

torch's exporter, in evaluation mode, writes tensors of equal content once and puts `Identity` in
the place of the others: every bias of zeros, every scale of ones and the running statistics beside
them would be one weight and train as one. Weights that the program ties on purpose (an embedding
and the head that reads it) look the same, but hold random numbers: those stay tied.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def untie(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Gives every `Identity` of a weight that holds one repeated number a weight of its own.

    Args:
        proto: The model, left as it is.

    Returns:
        The model, or a copy where something had to change.
    """
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    copies = {
        node.output[0]: node.input[0]
        for node in proto.graph.node
        if node.op_type == "Identity"
        and not node.domain
        and node.input[0] in weights
        and _is_uniform(weights[node.input[0]])
    }
    outputs = {value.name for value in proto.graph.output}
    copies = {copy: weight for copy, weight in copies.items() if copy not in outputs}
    if not copies:
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    kept = [node for node in changed.graph.node if node.output[0] not in copies]
    del changed.graph.node[:]
    changed.graph.node.extend(kept)
    for copy, weight in copies.items():
        changed.graph.initializer.append(weights[weight])
        changed.graph.initializer[-1].name = copy
    return changed


def _is_uniform(tensor: onnx.TensorProto) -> bool:
    floating = (
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.DOUBLE,
    )
    if tensor.data_type not in floating or len(tensor.dims) != 1 or tensor.external_data:
        return False
    array = numpy_helper.to_array(tensor)
    return array.size > 0 and bool(np.all(array == array[0]))
