"""Reads a loss backwards from its scalar: what depends on samples, and where samples are reduced.

A node that makes one number of all samples of a batch makes a statistic. What is computed from
statistics alone is one too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from popdist_onnx.graph.compat import inputs_of
from popdist_onnx.graph.large_files import content
from popdist_onnx.graph.names import FROZEN
from popdist_onnx.runtime.wiring import names_read

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import onnx

    from popdist_onnx.training.data import Array

LABEL_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
POPART_LOSSES = ("Ctc", "IdentityLoss", "L1", "Nll")
WEIGHTS = 2
"""Which input of a loss holds the weights of classes."""

VIEWS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
CONDITIONS = (
    *("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not"),
    "Or",
)
_SIZES = ("Shape", "Size")
_MATRIX = 2
_SELECTIONS = ("Constant", "Slice", "Split", "Transpose", *VIEWS)


class Reader:
    """Facts about the tensors of a model.

    Args:
        proto: The model with its loss and a fixed batch size.
        original: The model before its batch size was fixed.

    Attributes:
        makers: The node that makes each tensor.
        kinds: Types and shapes, where they are known.
        batch: Samples of a batch.
    """

    def __init__(self, proto: onnx.ModelProto, original: onnx.ModelProto | None = None) -> None:
        graph = proto.graph
        self._sizes = None if original is None else _of_sizes(original.graph)
        self._nodes = list(graph.node)
        self.makers = {name: node for node in graph.node for name in node.output}
        self._stored = {one.name: one for one in graph.initializer}
        self._inputs = {one.name for one in graph.input} - self._stored.keys()
        self.batch = next((one[0] for one in map(_dims, graph.input) if one and one[0]), 1)
        self.kinds = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
        properties = {one.key: one.value for one in proto.metadata_props}
        self._frozen = set(json.loads(properties.get(FROZEN, "[]")))
        self._with_data = self._reached()
        self._statistics: dict[str, bool] = {}

    def _reached(self) -> set[str]:
        """The tensors whose numbers, and not their shapes alone, depend on an input."""
        found = set(self._inputs)
        for node in self._nodes:
            if node.op_type not in _SIZES and not found.isdisjoint(names_read(node)):
                found.update(node.output)
        return found

    def depends_on_data(self, name: str) -> bool:
        """Whether a tensor's numbers, and not its shape alone, depend on an input."""
        return name in self._with_data

    def elements(self, name: str) -> int:
        """The type of a tensor's elements; 0 where it is not known."""
        if name in self._stored:
            return int(self._stored[name].data_type)
        return int(self.kinds[name].type.tensor_type.elem_type) if name in self.kinds else 0

    def shape(self, name: str) -> list[int] | None:
        """A tensor's shape; None where samples decide it."""
        if name in self._stored:
            return list(self._stored[name].dims)
        kind = self.kinds.get(name)
        if kind is None or not kind.type.tensor_type.HasField("shape"):
            return None
        known = all(one.HasField("dim_value") for one in kind.type.tensor_type.shape.dim)
        return _dims(kind) if known else None

    def rank(self, name: str) -> int | None:
        """The number of a tensor's axes; None where it is not known."""
        kind = self.kinds.get(name)
        known = kind is not None and kind.type.tensor_type.HasField("shape")
        return len(_dims(kind)) if known and kind is not None else None

    def reduces(self, node: onnx.NodeProto) -> bool:
        """Whether a node makes a statistic of samples."""
        if is_loss(node):
            return reduction(node) != "none"
        if not node.op_type.startswith("Reduce") or self.is_statistic(node.input[0]):
            return False
        axes = self.axes(node)
        if axes is None:
            return not bool(attributes(node).get("noop_with_empty_axes"))
        kind = self.kinds.get(node.input[0])
        shape = [] if kind is None else _dims(kind)
        covered = {axis % len(shape) for axis in axes} if shape else set(axes)
        if not shape or len(covered) == len(shape):
            return bool(shape)
        # Samples come first, unless something has moved them.
        return 0 in covered and shape[0] % self.batch == 0 and not self._moved(node.input[0])

    def may_reduce(self, node: onnx.NodeProto) -> bool:
        """Whether a node that reduces some axes may reduce samples, which may have been moved."""
        if not node.op_type.startswith("Reduce") or self.is_statistic(node.input[0]):
            return False
        kind, axes = self.kinds.get(node.input[0]), self.axes(node)
        shape = [] if kind is None else _dims(kind)
        if not shape or axes is None:
            return False
        found = {axis % len(shape) for axis in axes}
        if len(shape) > _MATRIX:
            # The last axis is then that of classes or features.
            found.discard(len(shape) - 1)
        return any(shape[one] % self.batch == 0 for one in found) and self._moved(node.input[0])

    def axes(self, node: onnx.NodeProto) -> list[int] | None:
        """The axes of a reduction; None where it takes all."""
        if (stated := attributes(node).get("axes")) is not None:
            return [int(one) for one in stated]
        if not any(node.input[1:]):
            return None
        found = self.constant(node.input[1])
        return None if found is None else [int(one) for one in found.reshape(-1)]

    def is_statistic(self, name: str) -> bool:
        """Whether all samples that a tensor depends on are reduced; true if it depends on none."""
        if name not in self._statistics:
            node = self.makers.get(name)
            self._statistics[name] = not self.depends_on_data(name) or (
                node is not None
                and (self.reduces(node) or all(map(self.is_statistic, names_read(node))))
            )
        return self._statistics[name]

    def is_trained(self, name: str) -> bool:
        """Whether weights may get a gradient from a tensor; conditions give none."""
        weights = self._stored.keys() - self._frozen
        return not weights.isdisjoint(self.before(name, ends=(*CONDITIONS, *_SIZES))[1])

    def counts_all(self, labels: str, ignored: int, samples: Mapping[str, Array]) -> bool:
        """Whether samples show that no label has the number of those that do not count."""
        nodes, leaves = self.before(labels)
        known = [samples[name] for name in leaves if name in samples]
        return (
            bool(known)
            and all(node.op_type in _SELECTIONS for node in nodes)
            and not any(np.any(one == ignored) for one in known)
        )

    def labels_counted(self, amount: str) -> tuple[str, int] | None:
        """The labels that an amount counts, and the number of those that are left out."""
        node = self.makers.get(amount)
        negated = False
        while node is not None and node.op_type in (*VIEWS, "Not", "ReduceSum"):
            negated ^= node.op_type == "Not"
            node = self.makers.get(node.input[0])
        if node is None or node.op_type != "Equal" or not negated:
            return None
        ignored = self.constant(node.input[1])
        if ignored is None or ignored.size != 1:
            return None
        return node.input[0], int(ignored.item())

    def constant(self, name: str) -> Array | None:
        """A tensor's numbers where the file has them."""
        while (node := self.makers.get(name)) is not None and node.op_type in VIEWS:
            name = node.input[0]
        if node is not None and node.op_type == "Constant":
            found = helper.get_attribute_value(node.attribute[0])
            return content(found) if hasattr(found, "dims") else np.asarray(found)
        return content(self._stored[name]) if name in self._stored else None

    def may_be_size(self, name: str) -> bool:
        """Whether a constant may be a number of samples, and not one that the program states."""
        while (node := self.makers.get(name)) is not None and node.op_type in VIEWS:
            name = node.input[0]
        number = self.constant(name)
        if number is None or number.size != 1 or number.item() % self.batch:
            return False
        return self._sizes is None or name in self._sizes

    def before(
        self, name: str, ends: Collection[str] = _SIZES
    ) -> tuple[list[onnx.NodeProto], set[str]]:
        """The nodes before a tensor, no further than some operators, and where they begin."""
        nodes, leaves = [], set()
        seen: set[str] = set()
        open_names = [name]
        while open_names:
            one = open_names.pop()
            node = self.makers.get(one)
            if one in seen:
                continue
            seen.add(one)
            if node is None:
                leaves.add(one)
            else:
                nodes.append(node)
                if node.op_type not in ends:
                    open_names += names_read(node)
        return nodes, leaves

    def _moved(self, name: str) -> bool:
        """Whether the first axis may be another one than that of the samples."""
        for node in self.before(name)[0]:
            if not node.input or not self.depends_on_data(node.input[0]):
                continue
            if node.op_type == "Transpose" and attributes(node).get("perm", [1])[0] != 0:
                return True
            if node.op_type == "Unsqueeze":
                axes = self.axes(node)
                if axes is None or 0 in axes or min(axes) < 0:
                    return True
        return False


def _of_sizes(graph: onnx.GraphProto) -> set[str] | None:
    """The tensors that depend on sizes; None where the file was made for one size of batches."""
    first = [_dims(one)[:1] for one in inputs_of(graph)]
    if [0] not in first:
        return None
    found: set[str] = set()
    for node in graph.node:
        if node.op_type in _SIZES or not found.isdisjoint(names_read(node)):
            found.update(node.output)
    return found


def _dims(kind: onnx.ValueInfoProto) -> list[int]:
    """A shape; 0 for what is not known."""
    return [one.dim_value for one in kind.type.tensor_type.shape.dim]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes by name."""
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def is_loss(node: onnx.NodeProto) -> bool:
    """Whether a node is a loss with a reduction of its own."""
    return node.op_type in (LABEL_LOSSES if node.domain == "" else POPART_LOSSES)


def reduction(node: onnx.NodeProto) -> str:
    """What a loss makes of its rows: ``mean``, ``sum`` or ``none``."""
    stated = attributes(node).get("reduction", b"mean").decode().lower()
    return "none" if stated == "noreduction" else str(stated)
