"""Writes means over other amounts in each part of a batch as sums, divided by these amounts.

Such a mean is one over labels that count, over weights of classes, or over samples that a
condition selects.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from popdist_onnx.training.loss_reading import (
    VIEWS,
    WEIGHTS,
    Reader,
    attributes,
    is_loss,
    reduction,
)

WIDE = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
"""The types in which sums of rows are computed; in narrower ones they can be infinite."""

_EVEN = ("Ctc", "IdentityLoss", "L1")
"""The losses whose means are over samples or elements, all of which count."""

_ROWS = 2

_SAME_SHAPE = ("Abs", "Exp", "Log", "Neg", "Pow", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh")


def spell_out(proto: onnx.ModelProto) -> None:
    """Writes the means over other amounts in each part as divisions, in place."""
    reader = Reader(proto)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        made = _Nodes(node, reader)
        if is_loss(node):
            _of_labels(made, node, reader)
        elif node.op_type == "ReduceMean" and reader.reduces(node):
            _of_selected(made, node, reader)
        nodes += made or [node]
        proto.graph.value_info.extend(made.values)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


class _Nodes(list[onnx.NodeProto]):
    """New nodes instead of another one, a mean.

    Attributes:
        kind: The type of the mean.
        values: Types and shapes of the sums.
    """

    def __init__(self, node: onnx.NodeProto, reader: Reader) -> None:
        super().__init__()
        self._mean = node.output[0]
        self._shape = reader.shape(self._mean) or []
        self.kind = reader.elements(self._mean) or onnx.TensorProto.FLOAT
        self.values: list[onnx.ValueInfoProto] = []

    def add(self, op_type: str, *inputs: str, **said: Any) -> str:
        """A node with one output."""
        output = f"{self._mean}/popdist.{len(self)}"
        self.append(helper.make_node(op_type, inputs, [output], **said))
        return output

    def cast(self, name: str, kind: int) -> str:
        """A tensor in another type."""
        return self.add("Cast", name, to=kind)

    def number(self, content: object, kind: int) -> str:
        """A constant."""
        array = np.asarray(content, helper.tensor_dtype_to_np_dtype(kind))
        return self.add("Constant", value=numpy_helper.from_array(array))

    def divide(self, total: str, amounts: str, least: int = 0, **said: Any) -> None:
        """Lets the mean be a sum, divided by the sum of amounts of any type."""
        wide = self.cast(amounts, onnx.TensorProto.DOUBLE)
        amount = self.add("ReduceSum", wide, **({"keepdims": 0} | said))
        for name, kind in ((total, self.kind), (amount, onnx.TensorProto.DOUBLE)):
            self.values.append(helper.make_tensor_value_info(name, kind, self._shape))
        limited = amount
        if least:
            limited = self.add("Max", amount, self.number(least, onnx.TensorProto.DOUBLE))
        divided = [total, self.cast(limited, self.kind)]
        self.append(helper.make_node("Div", divided, [self._mean]))


def _of_labels(made: _Nodes, node: onnx.NodeProto, reader: Reader) -> None:
    """Fills the nodes instead of a mean over labels, where not every label counts alike."""
    said = attributes(node)
    if reduction(node) != "mean" or any(node.output[1:]) or node.op_type in _EVEN:
        return
    labels, ignored = node.input[1], said.get("ignore_index", said.get("ignoreIndex"))
    weights = node.input[WEIGHTS] if len(node.input) > WEIGHTS else ""
    if not weights and ignored is None and reader.shape(labels) is not None:
        return
    said |= {"domain": node.domain}
    names = {"sum": "sum", "none": "none"} if node.domain == "" else {"sum": "Sum", "none": "None"}
    kind = reader.elements(labels) or onnx.TensorProto.INT64
    amounts = counted = made.add("Equal", labels, labels)
    if ignored is not None:
        counted = made.add("Equal", labels, made.number(ignored, kind))
        amounts = counted = made.add("Not", counted)
    chosen = labels
    if weights or reader.shape(labels) is None:
        chosen = made.add("Where", counted, labels, made.number(0, kind))
    if weights:
        rows = made.cast(made.add("Gather", weights, chosen), onnx.TensorProto.DOUBLE)
        amounts = made.add("Mul", rows, made.cast(counted, onnx.TensorProto.DOUBLE))
    if reader.shape(labels) is None and reader.rank(node.input[0]) == _ROWS and not node.domain:
        total = _of_rows(made, node, chosen, amounts)
    elif made.kind in WIDE:
        total = made.add(node.op_type, *node.input, **said | {"reduction": names["sum"]})
    else:
        rows = made.add(node.op_type, *node.input, **said | {"reduction": names["none"]})
        made.values.append(helper.make_tensor_value_info(rows, made.kind, None))
        total = made.add("ReduceSum", rows, keepdims=0)
    made.divide(total, amounts, least=0 if node.domain == "" else 1)


def _of_rows(made: _Nodes, node: onnx.NodeProto, labels: str, amounts: str) -> str:
    """A sum over rows that samples select: ONNX Runtime's own losses fail where there are none."""
    scores = node.input[0]
    if node.op_type == "SoftmaxCrossEntropyLoss":
        scores = made.add("LogSoftmax", scores, axis=1)
    column = made.number([-1, 1], onnx.TensorProto.INT64)
    picked = made.add("GatherElements", scores, made.add("Reshape", labels, column), axis=1)
    shares = made.add("Reshape", made.cast(amounts, made.kind), column)
    rows = made.add("Neg", made.add("Mul", picked, shares))
    made.values.append(helper.make_tensor_value_info(rows, made.kind, None))
    return made.add("ReduceSum", rows, keepdims=0)


def _of_selected(made: _Nodes, node: onnx.NodeProto, reader: Reader) -> None:
    """Fills the nodes instead of a mean over samples whose number the samples decide."""
    chosen = node.input[0]
    if reader.shape(chosen) is not None or reader.axes(node) is not None:
        return
    said = {name: one for name, one in attributes(node).items() if name == "keepdims"}
    total = made.add("ReduceSum", chosen, **said)
    before = reader.makers.get(chosen)
    while before is not None and before.op_type in (*_SAME_SHAPE, *VIEWS):
        before = reader.makers.get(before.input[0])
    shape = reader.shape(before.input[0]) if before is not None else None
    if before is not None and before.op_type == "GatherND" and shape is not None:
        # The same selection of ones: the samples' own numbers may need the whole network.
        ones = made.number(np.ones(shape), onnx.TensorProto.FLOAT)
        amounts = made.add("GatherND", ones, *before.input[1:])
        made[-1].attribute.extend(before.attribute)
    else:
        amounts = made.add("Equal", chosen, chosen)
    made.divide(total, amounts, **said)
