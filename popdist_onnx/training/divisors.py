"""Divides the means of a loss by the amounts of the global batch, as one process would.

A mean over labels that count, over weights of classes or over a mask has another divisor in each
part of a global batch, so that the mean of the parts is not that of the whole batch. Such a mean
becomes a sum, divided by an input of the graph. Before an update the divisors of all micro-batches
of all replicas are computed and summed over the job; each part divides by their mean::

    mean over parts of (sum_p / mean of divisors)  =  sum of all sum_p / sum of all divisors

A part in which nothing counts then adds nothing; its own mean would be 0 / 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from popdist_onnx.training.evaluation import Evaluator
from popdist_onnx.training.loss_means import LABEL_LOSSES, WEIGHTS, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from popdist_onnx.training.data import Array
    from popdist_onnx.training.sources import Layout, Source

_NAME = "popdist.divisor/{}"

_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
"""In narrower types a sum of rows can be infinite where their mean is not."""


class _Mean(NamedTuple):
    """A term of a loss that is a mean.

    Attributes:
        node: The node that divides: a loss over classes, or a division of two sums.
        value: The type and shape of its divisor.
        amount: The tensor whose sum is the divisor.
        made: The nodes that compute the amount, where the model has no such tensor.
        whole: The number of labels, where the divisor is the number of those that count.
        counted: These labels, and the number of those that do not count.
    """

    node: onnx.NodeProto
    value: onnx.ValueInfoProto
    amount: str
    made: list[onnx.NodeProto]
    whole: int | None
    counted: tuple[str, int] | None


class Divisors:
    """The divisors of a model's means, which become inputs of the model.

    Args:
        proto: The model with its loss and a fixed batch size, changed in place.
        loss: The loss.
        layout: How samples are divided.
    """

    def __init__(self, proto: onnx.ModelProto, loss: str, layout: Layout) -> None:
        means = list(_means(proto, loss)) if layout.parts > 1 else []
        self._layout = layout
        self._values = {one.value.name: one.value for one in means}
        self._whole: dict[str, float | None] = {one.value.name: one.whole for one in means}
        self._counted = [one.counted if one.whole else None for one in means]
        self._proto = proto
        self._constant: dict[str, Array] | None = None
        self._inputs: list[str] = []
        if means:
            needed = _divisor_model(proto, means)
            self._inputs = [one.name for one in needed.graph.input]
            self._evaluator = Evaluator(needed, self._values, layout.batch)
            for mean in means:
                _rewrite(proto.graph, mean)

    @property
    def names(self) -> list[str]:
        """The inputs; none where the loss adds up as it is."""
        return list(self._values)

    def prepare(self, source: Source) -> bool:
        """Looks whether the samples of a `fit` leave labels out at all.

        Returns:
            Whether divisors are exchanged for each update. All instances must agree on it.
        """
        first = source.first()
        known = all(len(array) == source.samples for array in first.values())
        reader = Reader(self._proto, first if known else {})
        all_count = all(one is not None and reader.counts_all(*one) for one in self._counted)
        self._constant = self._filled(self._whole) if all_count else None
        return self._constant is None

    def of(
        self, step: Mapping[str, Array], weights: Callable[[], Mapping[str, Array]]
    ) -> dict[str, Array]:
        """The divisors of an update, the same for all of its parts.

        Args:
            step: The samples of this process, [accumulation, local replicas, batch, ...] by input.
            weights: Returns the present weights by id.
        """
        if self._constant is not None:
            return self._constant
        flat = {name: step[name] for name in self._inputs}
        flat = {name: one.reshape(-1, *one.shape[3:]) for name, one in flat.items()}
        totals = dict.fromkeys(self._values, 0.0)
        for _, found in self._evaluator.run(weights(), flat, self._layout.own):
            for name in totals:
                totals[name] += float(found[name])
        summed = self._layout.job.summed(totals)
        return self._filled({name: total / self._layout.parts for name, total in summed.items()})

    def _filled(self, numbers: Mapping[str, float | None]) -> dict[str, Array]:
        """An array for all parts of this process, by input."""
        leading = (self._layout.accumulation, self._layout.job.local_replicas)
        made = {}
        for name, value in self._values.items():
            kind = value.type.tensor_type
            shape = (*leading, *(dim.dim_value for dim in kind.shape.dim))
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            made[name] = np.full(shape, numbers[name] or 0, dtype)
        return made


def _means(proto: onnx.ModelProto, loss: str) -> Iterator[_Mean]:
    """The means of a loss that can be divided by the amounts of the global batch."""
    reader = Reader(proto)
    kinds = {v.name: v for v in (*proto.graph.value_info, *proto.graph.output, *proto.graph.input)}
    for node in {term.output[0]: term for term in reader.terms(loss)}.values():
        name = _NAME.format(node.output[0])
        read = _of_labels if node.op_type in LABEL_LOSSES else _of_division
        mean = read(node, name, kinds, reader)
        if mean is not None and mean.value.type.tensor_type.elem_type in _TYPES:
            yield mean


def _of_labels(
    node: onnx.NodeProto, name: str, kinds: Mapping[str, onnx.ValueInfoProto], reader: Reader
) -> _Mean | None:
    said = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    weights = node.input[WEIGHTS] if len(node.input) > WEIGHTS else ""
    ignored = said.get("ignore_index")
    labels = kinds.get(node.input[1])
    if said.get("reduction", b"mean") != b"mean" or (not weights and ignored is None):
        return None
    loss = kinds.get(node.output[0])
    if loss is None or labels is None or not reader.is_elementwise(node.input[1]):
        return None
    if weights and not reader.is_elementwise(weights):
        return None
    made = _row_weights(node.input[1], labels, weights, ignored, name)
    value = helper.make_tensor_value_info(name, loss.type.tensor_type.elem_type, [])
    counted = None if weights or ignored is None else (node.input[1], ignored)
    return _Mean(node, value, made[-1].output[0], made, _size(labels), counted)


def _row_weights(
    labels: str, kind: onnx.ValueInfoProto, weights: str, ignored: int | None, name: str
) -> list[onnx.NodeProto]:
    """Nodes that compute the weight of each label, in float64."""
    made: list[onnx.NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: Any) -> str:
        made.append(helper.make_node(op_type, inputs, [f"{name}/{len(made)}"], **attributes))
        return str(made[-1].output[0])

    def number(content: int) -> str:
        kind_of = helper.tensor_dtype_to_np_dtype(kind.type.tensor_type.elem_type)
        return add("Constant", value=onnx.numpy_helper.from_array(np.asarray(content, kind_of)))

    counted = None if ignored is None else add("Not", add("Equal", labels, number(ignored)))
    share = None if counted is None else add("Cast", counted, to=onnx.TensorProto.DOUBLE)
    if weights:
        chosen = labels if counted is None else add("Where", counted, labels, number(0))
        rows = add("Cast", add("Gather", weights, chosen), to=onnx.TensorProto.DOUBLE)
        if share is not None:
            add("Mul", rows, share)
    return made


def _of_division(
    node: onnx.NodeProto, name: str, kinds: Mapping[str, onnx.ValueInfoProto], reader: Reader
) -> _Mean | None:
    if node.op_type != "Div" or not reader.is_sum(node.input[0]):
        return None
    summed = reader.behind_views(node.input[1])
    kind = kinds.get(node.input[1])
    if kind is None or summed is None or not reader.is_whole_sum(summed):
        return None
    amount = summed.input[0]
    if reader.is_trained(amount) or not reader.is_elementwise(amount):
        return None
    if not reader.depends_on_data(amount):
        return None
    value = onnx.ValueInfoProto()
    value.CopyFrom(kind)
    value.name = name
    return _Mean(node, value, amount, [], _size(kinds.get(amount)), reader.labels_counted(amount))


def _size(kind: onnx.ValueInfoProto | None) -> int | None:
    dims = [] if kind is None else kind.type.tensor_type.shape.dim
    sizes = [dim.dim_value for dim in dims]
    return int(np.prod(sizes)) if sizes and all(sizes) else None


def _divisor_model(proto: onnx.ModelProto, means: Sequence[_Mean]) -> onnx.ModelProto:
    """A model that computes the divisors of one micro-batch from the inputs that they need."""
    ends = [node for mean in means for node in (*mean.made, *_total(mean))]
    needed, kept = {mean.value.name for mean in means}, []
    for node in (*reversed(ends), *reversed(proto.graph.node)):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    graph = proto.graph
    initializers = [one for one in graph.initializer if one.name in needed]
    stored = {one.name for one in graph.initializer}
    inputs = [one for one in graph.input if one.name in needed - stored]
    outputs = [
        helper.make_tensor_value_info(mean.value.name, onnx.TensorProto.DOUBLE, [])
        for mean in means
    ]
    made = helper.make_graph(kept[::-1], "divisors", inputs, outputs, initializers)
    return helper.make_model(
        made, opset_imports=list(proto.opset_import), ir_version=proto.ir_version
    )


def _total(mean: _Mean) -> list[onnx.NodeProto]:
    name = mean.value.name
    wide = helper.make_node("Cast", [mean.amount], [f"{name}/wide"], to=onnx.TensorProto.DOUBLE)
    return [wide, helper.make_node("ReduceSum", [f"{name}/wide"], [name], keepdims=0)]


def _rewrite(graph: onnx.GraphProto, mean: _Mean) -> None:
    """Lets a mean be a sum that is divided by the new input."""
    node, name = mean.node, mean.value.name
    graph.input.append(mean.value)
    if node.op_type == "Div":
        node.input[1] = name
        return
    place = next(index for index, one in enumerate(graph.node) if one.output[:1] == node.output[:1])
    total = f"{name}/sum"
    kept = [one for one in node.attribute if one.name != "reduction"]
    divided = helper.make_node("Div", [total, name], [node.output[0]])
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("reduction", "sum")])
    node.output[0] = total
    graph.node.insert(place + 1, divided)
