"""Warns of losses whose gradients on parts of a batch have another mean than that of the batch.

A job takes the mean of the gradients of all replicas and micro-batches. That is the gradient of the
global batch where the loss is a mean over samples. It is another one where the loss is a sum, or a
mean over something that the parts have other amounts of: weights of classes, or labels that count.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx

    from popdist_onnx.training.data import Array

logger = logging.getLogger("popdist.onnx")

_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
_WEIGHTS = 2
"""Which input of a loss holds the weights of classes."""

_VIEWS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_SUMS = ("Add", "Sub", "Sum", "Neg")
_SIZES = ("Shape", "Size")

_SUM = (
    "the loss is a sum over samples. Of the %d parts of a global batch (replicas x accumulation) "
    "the mean of the gradients is taken, which is smaller by that factor than in one process: use "
    "a mean"
)
_OTHER_MEAN = (
    "the loss is a mean over other amounts in each of the %d parts of a global batch (weights of "
    "classes, masks, labels that do not count), and so are the gradients, of which the mean is "
    "taken. One process would count every sample alike: divide a sum by the number of samples "
    "instead"
)


def warn_of_other_means(
    proto: onnx.ModelProto, loss: str, first: Mapping[str, Array], parts: int
) -> None:
    """Reports a loss that does not add up from the parts of a batch.

    Args:
        proto: The model with its loss.
        loss: The loss.
        first: Some samples of all inputs, which show whether labels are left out.
        parts: How many replicas and micro-batches share a batch.
    """
    if parts > 1:
        for text in dict.fromkeys(_Reader(proto, first).findings(loss)):
            logger.warning(text, parts)


class _Reader:
    def __init__(self, proto: onnx.ModelProto, first: Mapping[str, Array]) -> None:
        self._makers = {name: node for node in proto.graph.node for name in node.output}
        self._stored = {one.name: one for one in proto.graph.initializer}
        self._inputs = {one.name for one in proto.graph.input} - self._stored.keys()
        self._first = first

    def findings(self, name: str) -> Iterator[str]:
        """What is wrong with a scalar that is the loss, or a term of it."""
        node = self._makers.get(name)
        if node is None:
            return
        if node.op_type in (*_VIEWS, *_SUMS):
            for one in node.input if node.op_type in _SUMS else node.input[:1]:
                yield from self.findings(one)
        elif node.op_type == "Mul":
            for one, factor in (node.input, reversed(node.input)):
                if not self._depends_on_data(factor):
                    yield from self.findings(one)
        else:
            yield from self._of_term(node)

    def _of_term(self, node: onnx.NodeProto) -> Iterator[str]:
        if node.op_type in ("ReduceSum", "ReduceSumSquare"):
            if self._depends_on_data(node.output[0]):
                yield _SUM
        elif node.op_type == "Div":
            if self._depends_on_data(node.input[1]) and self._differs(node.input[1]):
                yield _OTHER_MEAN
        elif node.op_type in _LOSSES:
            yield from self._of_labels(node)

    def _differs(self, amount: str) -> bool:
        """Whether an amount may differ between parts; not where it counts labels, and all count."""
        node = self._makers.get(amount)
        while node is not None and node.op_type in (*_VIEWS, "Not", "ReduceSum"):
            node = self._makers.get(node.input[0])
        if node is None or node.op_type != "Equal":
            return True
        ignored = self._constant(node.input[1])
        return ignored is None or self._leaves_out(node.input[0], ignored)

    def _constant(self, name: str) -> int | None:
        while (node := self._makers.get(name)) is not None and node.op_type in _VIEWS:
            name = node.input[0]
        if node is not None and node.op_type == "Constant":
            found = helper.get_attribute_value(node.attribute[0])
            array = numpy_helper.to_array(found) if hasattr(found, "dims") else np.asarray(found)
        elif name in self._stored:
            array = numpy_helper.to_array(self._stored[name])
        else:
            return None
        return int(array.item()) if array.size == 1 else None

    def _of_labels(self, node: onnx.NodeProto) -> Iterator[str]:
        said = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        reduction = said.get("reduction", b"mean")
        if reduction == b"sum":
            yield _SUM
        elif reduction == b"mean":
            weighted = len(node.input) > _WEIGHTS and node.input[_WEIGHTS]
            if weighted or self._leaves_out(node.input[1], said.get("ignore_index")):
                yield _OTHER_MEAN

    def _leaves_out(self, labels: str, ignored: int | None) -> bool:
        while (node := self._makers.get(labels)) is not None and node.op_type in _VIEWS:
            labels = node.input[0]
        return ignored is not None and bool(np.any(self._first.get(labels, ()) == ignored))

    def _depends_on_data(self, name: str) -> bool:
        """Whether a tensor's numbers, and not its shape alone, depend on an input."""
        seen: set[str] = set()
        open_names = [name]
        while open_names:
            one = open_names.pop()
            if one in self._inputs:
                return True
            node = self._makers.get(one)
            if one not in seen and node is not None and node.op_type not in _SIZES:
                open_names += node.input
            seen.add(one)
        return False
