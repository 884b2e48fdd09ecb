"""Writes linear models of ``ai.onnx.ml`` in standard operators, so that they train.

`LinearRegressor` and `LinearClassifier`, as skl2onnx writes them, hold their coefficients as
attributes. They become a `Gemm` with weights, and the classifier's softmax or sigmoid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator

_DOMAIN = "ai.onnx.ml"

_TRANSFORMS = {"NONE": "Identity", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}
"""By ``post_transform`` the operator that computes the same over the last axis."""


def with_linear_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Makes coefficients and intercepts of linear models initializers, in a copy.

    Models with another transform, and classifiers with one row for two classes, stay as they are.
    """
    if all(node.domain != _DOMAIN for node in proto.graph.node):
        return proto
    written = onnx.ModelProto()
    written.CopyFrom(proto)
    writer = _Writer(written)
    nodes = [one for node in proto.graph.node for one in writer.written(node)]
    del written.graph.node[:]
    written.graph.node.extend(nodes)
    return written


class _Writer:
    def __init__(self, proto: onnx.ModelProto) -> None:
        self._graph = proto.graph
        self._kinds = {one.name: one.type.tensor_type.elem_type for one in proto.graph.input}
        self._taken = {one.name for one in proto.graph.initializer}
        self._taken |= {name for node in proto.graph.node for name in (*node.input, *node.output)}
        self._shares: set[str] = set()

    def written(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The nodes in place of a node; the node itself where there are none."""
        said = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        transform = said.get("post_transform", b"NONE").decode()
        known = node.domain == _DOMAIN and transform in _TRANSFORMS
        if known and node.op_type == "LinearRegressor":
            yield from self._linear(node, said, transform, said.get("targets", 1), node.output[0])
        elif known and node.op_type == "LinearClassifier" and _has_rows(said):
            yield from self._classifier(node, said, transform)
        elif (node.domain, node.op_type) == (_DOMAIN, "Normalizer") and self._is_share(node, said):
            yield helper.make_node("Identity", node.input, node.output, node.name)
        else:
            yield node

    def _is_share(self, node: onnx.NodeProto, said: dict[str, Any]) -> bool:
        """Whether a softmax is divided by its sum, which is one."""
        return node.input[0] in self._shares and said.get("norm") == b"L1"

    def _classifier(
        self, node: onnx.NodeProto, said: dict[str, Any], transform: str
    ) -> Iterator[onnx.NodeProto]:
        classes = np.asarray(said["classlabels_ints"], np.int64)
        label, scores = node.output
        yield from self._linear(node, said, transform, len(classes), scores)
        if transform == "SOFTMAX":
            self._shares.add(scores)
        if label:
            best = self._free(f"{label}/best")
            yield helper.make_node("ArgMax", [scores], [best], axis=1, keepdims=0)
            yield helper.make_node("Gather", [self._stored("classes", classes), best], [label])

    def _linear(
        self, node: onnx.NodeProto, said: dict[str, Any], transform: str, rows: int, output: str
    ) -> Iterator[onnx.NodeProto]:
        x = node.input[0]
        if self._kinds.get(x, onnx.TensorProto.FLOAT) != onnx.TensorProto.FLOAT:
            x = self._free(f"{x}/float")
            yield helper.make_node("Cast", node.input[:1], [x], to=onnx.TensorProto.FLOAT)
        factors = np.asarray(said["coefficients"], np.float32).reshape(rows, -1)
        # The names of skl2onnx for what scikit-learn trains: `freeze_constants` knows them.
        read = [x, self._stored("coefficients", factors)]
        if "intercepts" in said:
            read.append(self._stored("intercepts", np.asarray(said["intercepts"], np.float32)))
        scores = self._free(f"{output}/scores")
        yield helper.make_node("Gemm", read, [scores], node.name, transB=1)
        axis: dict[str, Any] = {"axis": -1} if transform == "SOFTMAX" else {}
        yield helper.make_node(_TRANSFORMS[transform], [scores], [output], **axis)

    def _stored(self, name: str, content: np.ndarray[Any, Any]) -> str:
        name = self._free(name)
        self._graph.initializer.append(numpy_helper.from_array(content, name))
        return name

    def _free(self, name: str) -> str:
        found, number = name, 0
        while found in self._taken:
            number += 1
            found = f"{name}{number}"
        self._taken.add(found)
        return found


def _has_rows(said: dict[str, Any]) -> bool:
    """Whether each class of a classifier, which is a number, has coefficients of its own."""
    classes = said.get("classlabels_ints", ())
    return len(classes) > 1 and len(said.get("intercepts", ())) == len(classes)
