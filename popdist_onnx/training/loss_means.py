"""Warns of losses whose gradients on parts of a batch have another mean than that of the batch.

A job takes the mean of the gradients of all replicas and micro-batches. That is the gradient of the
global batch where the loss is a mean over samples. It is another one where the loss is a sum, or a
mean over something that the parts have other amounts of: weights of classes, or labels that count.
`divisors` mends most means of that kind; the others, and sums, are warned of here.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper, numpy_helper

from popdist_onnx.graph.names import FROZEN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import onnx

    from popdist_onnx.training.data import Array

logger = logging.getLogger("popdist.onnx")

LABEL_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
WEIGHTS = 2
"""Which input of a loss holds the weights of classes."""

_VIEWS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_SUMS = ("Add", "Sub", "Sum", "Neg")
_SIZES = ("Shape", "Size")
_CONDITIONS = ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or")
_SELECTIONS = ("Constant", "Slice", "Split", "Transpose", *_VIEWS)
_ELEMENTWISE = (
    *("Abs", "Add", "CastLike", "Clip", "Concat", "Div", "Expand", "Gather", "GatherND", "Max"),
    *("Min", "Mul", "Neg", "Pad", "Pow", "Sign", "Sub", "Where", *_CONDITIONS, *_SELECTIONS),
)
"""The operators between a batch and amounts whose sum adds up from parts of the batch."""

_CURVES = (
    *("Abs", "Clip", "Elu", "Exp", "Log", "Max", "Min", "Pow", "Reciprocal", "Relu", "Sigmoid"),
    *("Softplus", "Sqrt", "Tanh", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
    *("ReduceMin", "ReduceProd"),
)
"""The operators whose number for a batch is no mean of those of its parts."""

_FUNCTION = (
    "the loss is no mean but a function of the whole batch, such as the root of a mean. Of the %d "
    "parts of a global batch (replicas x accumulation) the mean of the gradients is taken, which "
    "is another one than in one process: use the mean itself"
)
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
    proto: onnx.ModelProto,
    loss: str,
    first: Mapping[str, Array],
    parts: int,
    divisors: Collection[str] = (),
) -> None:
    """Reports a loss that does not add up from the parts of a batch.

    Args:
        proto: The model with its loss.
        loss: The loss.
        first: Some samples of all inputs, which show whether labels are left out.
        parts: How many replicas and micro-batches share a batch.
        divisors: Inputs that have the same number in all parts.
    """
    if parts > 1:
        reader = Reader(proto, first, divisors)
        found = [text for term in reader.terms(loss) for text in reader.findings(term)]
        for text in dict.fromkeys(found):
            logger.warning(text, parts)


class Reader:
    """Reads a loss backwards from its scalar.

    Args:
        proto: The model with its loss.
        first: Some samples of all inputs.
        divisors: Inputs that have the same number in all parts of a batch.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        first: Mapping[str, Array] | None = None,
        divisors: Collection[str] = (),
    ) -> None:
        self._makers = {name: node for node in proto.graph.node for name in node.output}
        self._stored = {one.name: one for one in proto.graph.initializer}
        self._inputs = {one.name for one in proto.graph.input} - self._stored.keys()
        self._inputs -= set(divisors)
        self._first = first or {}
        properties = {one.key: one.value for one in proto.metadata_props}
        self._frozen = set(json.loads(properties.get(FROZEN, "[]")))

    def terms(self, name: str) -> Iterator[onnx.NodeProto]:
        """The nodes whose outputs a loss adds up, with constant factors."""
        node = self._makers.get(name)
        if node is None:
            return
        if node.op_type in (*_VIEWS, *_SUMS):
            for one in node.input if node.op_type in _SUMS else node.input[:1]:
                yield from self.terms(one)
        elif node.op_type == "Mul":
            for one, factor in (node.input, reversed(node.input)):
                if not self.depends_on_data(factor):
                    yield from self.terms(one)
        else:
            yield node

    def findings(self, node: onnx.NodeProto) -> Iterator[str]:
        """Why a term does not add up from parts of a batch."""
        if node.op_type in ("ReduceSum", "ReduceSumSquare"):
            if self.depends_on_data(node.output[0]):
                yield _SUM
        elif node.op_type == "Div":
            if self.depends_on_data(node.input[1]) and self._differs(node.input[1]):
                yield _OTHER_MEAN
        elif node.op_type in _CURVES:
            if self.depends_on_data(node.output[0]):
                yield _FUNCTION
        elif node.op_type in LABEL_LOSSES:
            yield from self._of_labels(node)

    def is_sum(self, name: str) -> bool:
        """Whether a scalar is a sum over all elements of tensors, with constant factors."""
        terms = list(self.terms(name))
        return bool(terms) and all(map(self.is_whole_sum, terms))

    def is_whole_sum(self, node: onnx.NodeProto) -> bool:
        """Whether a node sums all elements of a tensor."""
        axes = any(one.name == "axes" for one in node.attribute) or any(node.input[1:])
        return node.op_type == "ReduceSum" and not axes

    def behind_views(self, name: str) -> onnx.NodeProto | None:
        """The node that makes the numbers of a tensor, whatever its shape or type."""
        while (node := self._makers.get(name)) is not None and node.op_type in _VIEWS:
            name = node.input[0]
        return node

    def is_elementwise(self, name: str) -> bool:
        """Whether the sum of a tensor of a batch is that of its parts."""
        return all(one.op_type in (*_ELEMENTWISE, *_SIZES) for one in self._before(name)[0])

    def is_trained(self, name: str) -> bool:
        """Whether weights may get a gradient from a tensor; conditions give none."""
        weights = self._stored.keys() - self._frozen
        return not weights.isdisjoint(self._before(name, ends=_CONDITIONS)[1])

    def counts_all(self, labels: str, ignored: int) -> bool:
        """Whether the samples show that no label has the number of those that do not count."""
        nodes, leaves = self._before(labels)
        known = [self._first[name] for name in leaves if name in self._first]
        return (
            bool(known)
            and all(node.op_type in _SELECTIONS for node in nodes)
            and not any(np.any(one == ignored) for one in known)
        )

    def labels_counted(self, amount: str) -> tuple[str, int] | None:
        """The labels that an amount counts, and the number of those that are left out."""
        node = self._makers.get(amount)
        negated = False
        while node is not None and node.op_type in (*_VIEWS, "Not", "ReduceSum"):
            negated ^= node.op_type == "Not"
            node = self._makers.get(node.input[0])
        if node is None or node.op_type != "Equal" or not negated:
            return None
        ignored = self._constant(node.input[1])
        return None if ignored is None else (node.input[0], ignored)

    def _differs(self, amount: str) -> bool:
        """Whether an amount may differ between parts; not where it counts labels, and all count."""
        counted = self.labels_counted(amount)
        return counted is None or self._leaves_out(*counted)

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
            weighted = len(node.input) > WEIGHTS and node.input[WEIGHTS]
            if weighted or self._leaves_out(node.input[1], said.get("ignore_index")):
                yield _OTHER_MEAN

    def _leaves_out(self, labels: str, ignored: int | None) -> bool:
        first = [self._first.get(name, ()) for name in self._before(labels)[1]]
        return ignored is not None and any(bool(np.any(one == ignored)) for one in first)

    def depends_on_data(self, name: str) -> bool:
        """Whether a tensor's numbers, and not its shape alone, depend on an input."""
        return not self._inputs.isdisjoint(self._before(name)[1])

    def _before(
        self, name: str, ends: Collection[str] = _SIZES
    ) -> tuple[list[onnx.NodeProto], set[str]]:
        """The nodes before a tensor, no further than some operators, and where they begin."""
        nodes, leaves = [], set()
        seen: set[str] = set()
        open_names = [name]
        while open_names:
            one = open_names.pop()
            node = self._makers.get(one)
            if one in seen:
                continue
            seen.add(one)
            if node is None:
                leaves.add(one)
            else:
                nodes.append(node)
                if node.op_type not in ends:
                    open_names += node.input
        return nodes, leaves
