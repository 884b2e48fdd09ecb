"""Reads a loss backwards from its scalar: what depends on samples, and where samples are reduced.

A node that makes one number of all samples of a batch makes a statistic. What is computed from
statistics alone is one too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.graph.compat import reads
from popdist_onnx.graph.names import FROZEN
from popdist_onnx.graph.values import dims, stored

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import onnx_ir as ir

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
    """Facts about the tensors of a model, as it is when it is read.

    Args:
        model: The model with its loss and a fixed batch size.
        original: The model before its batch size was fixed.

    Attributes:
        batch: Samples of a batch.
    """

    def __init__(self, model: ir.Model, original: ir.Model | None = None) -> None:
        graph = model.graph
        self._sizes = None if original is None else _of_sizes(original.graph)
        firsts = [known[0] for one in graph.inputs if (known := _lengths(one))]
        self.batch = next(filter(None, firsts), 1)
        frozen = set(json.loads(model.metadata_props.get(FROZEN, "[]")))
        self._weights = {one for name, one in graph.initializers.items() if name not in frozen}
        # What depends on an input, and what of it is no statistic.
        self._with_data = {one for one in graph.inputs if not one.is_initializer()}
        self._by_sample = set(self._with_data)
        for node in graph:
            self._follow(node)

    def _follow(self, node: ir.Node) -> None:
        """Notes whether the outputs of a node depend on data, and on single samples."""
        read = reads(node)
        if node.op_type in _SIZES or self._with_data.isdisjoint(read):
            return
        self._with_data.update(node.outputs)
        if not self._by_sample.isdisjoint(read) and not self.reduces(node):
            self._by_sample.update(node.outputs)

    def depends_on_data(self, value: ir.Value | None) -> bool:
        """Whether a tensor's numbers, and not its shape alone, depend on an input."""
        return value in self._with_data

    def is_statistic(self, value: ir.Value | None) -> bool:
        """Whether all samples that a tensor depends on are reduced; true if it depends on none."""
        return value not in self._by_sample

    def reduces(self, node: ir.Node) -> bool:
        """Whether a node makes a statistic of samples."""
        if is_loss(node):
            return reduction(node) != "none"
        if not node.op_type.startswith("Reduce") or self.is_statistic(node.inputs[0]):
            return False
        axes = axes_of(node)
        if axes is None:
            return not node.attributes.get_int("noop_with_empty_axes", 0)
        shape = _lengths(node.inputs[0])
        covered = {axis % len(shape) for axis in axes} if shape else set(axes)
        if not shape or len(covered) == len(shape):
            return bool(shape)
        # Samples come first, unless something has moved them.
        return 0 in covered and shape[0] % self.batch == 0 and not self._moved(node.inputs[0])

    def may_reduce(self, node: ir.Node) -> bool:
        """Whether a node that reduces some axes may reduce samples, which may have been moved."""
        if not node.op_type.startswith("Reduce") or self.is_statistic(node.inputs[0]):
            return False
        shape, axes = _lengths(node.inputs[0]), axes_of(node)
        if not shape or axes is None:
            return False
        found = {axis % len(shape) for axis in axes}
        if len(shape) > _MATRIX:
            # The last axis is then that of classes or features.
            found.discard(len(shape) - 1)
        return any(shape[one] % self.batch == 0 for one in found) and self._moved(node.inputs[0])

    def is_trained(self, value: ir.Value) -> bool:
        """Whether weights may get a gradient from a tensor; conditions give none."""
        return not self._weights.isdisjoint(before(value, ends=(*CONDITIONS, *_SIZES))[1])

    def may_be_size(self, value: ir.Value | None) -> bool:
        """Whether a constant may be a number of samples, and not one that the program states."""
        number = constant_of(value)
        if value is None or number is None or number.size != 1 or number.item() % self.batch:
            return False
        return self._sizes is None or _viewed(value).name in self._sizes

    def _moved(self, value: ir.Value | None) -> bool:
        """Whether the first axis may be another one than that of the samples."""
        for node in before(value)[0]:
            if not node.inputs or not self.depends_on_data(node.inputs[0]):
                continue
            if node.op_type == "Transpose" and node.attributes.get_ints("perm", [1])[0] != 0:
                return True
            if node.op_type == "Unsqueeze":
                axes = axes_of(node)
                if axes is None or 0 in axes or min(axes) < 0:
                    return True
        return False


def counts_all(labels: ir.Value, ignored: int, samples: Mapping[str, Array]) -> bool:
    """Whether samples show that no label has the number of those that do not count."""
    nodes, leaves = before(labels)
    known = [samples[str(one.name)] for one in leaves if one.name in samples]
    return (
        bool(known)
        and all(node.op_type in _SELECTIONS for node in nodes)
        and not any(np.any(one == ignored) for one in known)
    )


def labels_counted(amount: ir.Value | None) -> tuple[ir.Value, int] | None:
    """The labels that an amount counts, and the number of those that are left out."""
    negated = False
    while (node := producer(amount)) is not None and node.op_type in (*VIEWS, "Not", "ReduceSum"):
        negated ^= node.op_type == "Not"
        amount = node.inputs[0]
    if node is None or node.op_type != "Equal" or not negated:
        return None
    labels, ignored = node.inputs[0], constant_of(node.inputs[1])
    if labels is None or ignored is None or ignored.size != 1:
        return None
    return labels, int(ignored.item())


def producer(value: ir.Value | None) -> ir.Node | None:
    """The node that makes a tensor; None for inputs, weights, and operands that are left out."""
    return None if value is None else value.producer()


def before(
    value: ir.Value | None, ends: Collection[str] = _SIZES
) -> tuple[list[ir.Node], set[ir.Value]]:
    """The nodes before a tensor, no further than some operators, and where they begin."""
    nodes: dict[ir.Node, None] = {}
    leaves = set()
    waiting = [] if value is None else [value]
    while waiting:
        one = waiting.pop()
        node = one.producer()
        if node is None:
            leaves.add(one)
        elif node not in nodes:
            nodes[node] = None
            if node.op_type not in ends:
                waiting += reads(node)
    return list(nodes), leaves


def axes_of(node: ir.Node) -> list[int] | None:
    """The axes of a reduction; None where it takes all."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    found = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if found is None else [int(one) for one in found.reshape(-1)]


def constant_of(value: ir.Value | None) -> Array | None:
    """A tensor's numbers where the file has them."""
    return None if value is None else stored(_viewed(value))


def _viewed(value: ir.Value) -> ir.Value:
    """The tensor whose numbers another one has."""
    while (node := value.producer()) is not None and node.op_type in VIEWS:
        seen = node.inputs[0]
        assert seen is not None  # noqa: S101 - these operators have an input
        value = seen
    return value


def _of_sizes(graph: ir.Graph) -> set[str | None] | None:
    """The tensors that depend on sizes; None where the file was made for one size of batches."""
    inputs = [_lengths(one) for one in graph.inputs if not one.is_initializer()]
    if not any(known and not known[0] for known in inputs):
        return None
    found: set[ir.Value] = set()
    for node in graph:
        if node.op_type in _SIZES or not found.isdisjoint(reads(node)):
            found.update(node.outputs)
    return {one.name for one in found}


def _lengths(value: ir.Value | None) -> list[int]:
    """A shape; 0 for what is not known."""
    known = None if value is None else dims(value)
    return [one if isinstance(one, int) else 0 for one in known or ()]


def is_loss(node: ir.Node) -> bool:
    """Whether a node is a loss with a reduction of its own."""
    return node.op_type in (LABEL_LOSSES if node.domain == "" else POPART_LOSSES)


def reduction(node: ir.Node) -> str:
    """What a loss makes of its rows: ``mean``, ``sum`` or ``none``."""
    stated = node.attributes.get_string("reduction", "mean").lower()
    return "none" if stated == "noreduction" else stated
