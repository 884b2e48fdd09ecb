"""Loss and metrics of a model on validation data, and models as they are for inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from popdist_onnx.errors import ArgumentError, ValueRangeError
from popdist_onnx.graph.compat import graphs_within
from popdist_onnx.session.devices import DeviceManager
from popdist_onnx.session.inference import InferenceSession
from popdist_onnx.session.step_io import PyStepIO
from popdist_onnx.training.data import sample_count
from popdist_onnx.training.model import LABELS, LOSSES, main_output, trainable
from popdist_onnx.types.data_flow import AnchorReturnType, DataFlow
from popdist_onnx.types.session_options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from popdist_onnx.runtime.state import Array
    from popdist_onnx.training.local_replicas import LocalReplicas

    Metric = Callable[[Array, Array], Any]


def accuracy(outputs: Array, labels: Array) -> Array:
    """Whether the largest score along the second axis is the label's, for each label."""
    return np.asarray(outputs.argmax(1) == labels.reshape(outputs.argmax(1).shape))


def absolute_error(outputs: Array, labels: Array) -> Array:
    """The distance of each output from its label."""
    return np.asarray(np.abs(outputs - labels.reshape(outputs.shape)))


NAMED: dict[str, Metric] = {"accuracy": accuracy, "absolute_error": absolute_error}
"""The metrics that have a name."""


def metrics_of(given: Iterable[str] | Mapping[str, Metric]) -> dict[str, Metric]:
    """Metrics by name: functions from outputs and labels to a number per sample.

    Raises:
        ValueRangeError: There is no such metric.
        ArgumentError: A metric cannot be called.
    """
    listed: dict[str, Metric | None]
    if isinstance(given, Mapping):
        listed = dict(given)
    else:
        listed = {name: NAMED.get(name) for name in ([given] if isinstance(given, str) else given)}
    for name, function in listed.items():
        if function is None:
            raise ValueRangeError(
                "PD583",
                f"there is no metric '{name}'",
                accepted=f"{', '.join(NAMED)}, or functions by name",
            )
        if not callable(function):
            raise ArgumentError("PD583", f"metric '{name}' is not a function", value=function)
    return {str(name): function for name, function in listed.items() if function is not None}


class Evaluator:
    """A model compiled once for inference, whose weights are loaded for every use.

    Args:
        proto: The model, with a fixed batch size.
        outputs: The tensors to return.
        batch: Samples of a batch.
    """

    def __init__(self, proto: onnx.ModelProto, outputs: Iterable[str], batch: int) -> None:
        options = SessionOptions()
        options.constantWeights = False
        self._batch = batch
        self._outputs = list(outputs)
        flow = DataFlow(1, dict.fromkeys(self._outputs, AnchorReturnType("All")))
        device = DeviceManager().createCpuDevice()
        self._session = InferenceSession(
            proto, flow, device, userOptions=options, name="evaluation"
        )
        self._session.prepareDevice()
        self._anchors = self._session.initAnchorArrays()

    def run(
        self,
        weights: Mapping[str, Array],
        data: Mapping[str, Array],
        samples: int,
        numbers: Mapping[str, Array] | None = None,
    ) -> Iterator[tuple[slice, dict[str, Array]]]:
        """Computes the outputs batch by batch, all with the same ``numbers`` as further inputs.

        Yields:
            The samples of a batch, and their outputs, which the next batch overwrites. The last
            batch is padded with its last sample, and the outputs of the padding are left out.
        """
        self._session.attach_weights(weights)
        for start in range(0, samples, self._batch):
            chosen = np.minimum(np.arange(start, start + self._batch), samples - 1)
            step = {name: np.ascontiguousarray(array[chosen]) for name, array in data.items()}
            self._session.run(PyStepIO({**step, **(numbers or {})}, self._anchors))
            rows = slice(start, min(start + self._batch, samples))
            kept = rows.stop - rows.start
            found = {name: self._anchors[name] for name in self._outputs}
            # A loss of the model's own is one number, as are statistics of a whole batch.
            cut = kept < self._batch
            yield (
                rows,
                {name: one[:kept] if one.ndim and cut else one for name, one in found.items()},
            )


class Measures:
    """Loss and metrics of a model, as it is for inference.

    Args:
        model: The model, with a fixed batch size and without a loss of `LOSSES`.
        loss: One of `LOSSES`, or the id of the model's own loss.
        metrics: Metrics by name.
        batch: Samples of a batch.
        job: The processes that share the samples.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        loss: str,
        metrics: Mapping[str, Metric],
        batch: int,
        job: LocalReplicas,
    ) -> None:
        self._batch, self._job, self._metrics = batch, job, metrics
        # A loss inside the model belongs to a whole batch, of which every process has all samples.
        self._by_label = loss in LOSSES
        self._output = main_output(model)
        proto, self._loss, _ = trainable(in_inference_mode(model), loss, evaluation=True)
        self._evaluator = Evaluator(proto, dict.fromkeys([self._output, self._loss]), batch)

    def of(self, weights: Mapping[str, Array], data: Mapping[str, Array]) -> dict[str, float]:
        """Means over all samples, of which each process computes its part."""
        mine = np.arange(sample_count(data))
        if self._by_label:
            mine = np.concatenate(np.array_split(mine, self._job.total_replicas)[self._job.own])
        else:
            mine = mine[: len(mine) - len(mine) % self._batch]
        part = {name: one[mine] for name, one in data.items()}
        whole = self._job.summed(self._totals(weights, part, len(mine)))
        return {name: whole[name] / whole["samples"] for name in whole if name != "samples"}

    def _totals(
        self, weights: Mapping[str, Array], data: Mapping[str, Array], samples: int
    ) -> dict[str, float]:
        """Sums over samples: of the loss, of each metric, and their number."""
        totals = dict.fromkeys(["loss", *self._metrics, "samples"], 0.0)
        for rows, found in self._evaluator.run(weights, data, samples):
            count = rows.stop - rows.start
            totals["loss"] += float(np.mean(found[self._loss], dtype=np.float64)) * count
            totals["samples"] += count
            for name, metric in self._metrics.items():
                value = np.mean(metric(found[self._output], data[LABELS][rows]), dtype=np.float64)
                totals[name] += float(value) * count
        return totals


# Models as they are for inference: with running statistics, and without dropout. `from_torch`
# exports a module in training mode, which the file then states.


_RATIO_AND_DATA = 2
_MEAN = 3
"""The inputs of dropout without its mode, and the first running statistic of normalisation."""


def in_inference_mode(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model, in inference mode; the model itself where it has no other mode."""
    if not modes(proto):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for graph, node in _training(made):
        if node.op_type == "Dropout":
            del node.input[_RATIO_AND_DATA:]
        else:
            _use_running_statistics(graph, node)
    return made


def _use_running_statistics(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    place = next(index for index, one in enumerate(graph.node) if one.output[0] == node.output[0])
    # A module that is used several times passes its statistics on.
    for given, updated in zip(node.input[_MEAN:], node.output[1:], strict=False):
        if updated:
            graph.node.insert(place + 1, helper.make_node("Identity", [given], [updated]))
    del node.output[1:]
    for one in node.attribute:
        if one.name == "training_mode":
            one.i = 0


def modes(proto: onnx.ModelProto) -> list[str]:
    """The operators in training mode."""
    return sorted({node.op_type for _, node in _training(proto)})


def _training(proto: onnx.ModelProto) -> list[tuple[onnx.GraphProto, onnx.NodeProto]]:
    graphs = list(graphs_within(proto.graph))
    true = {one.name for graph in graphs for one in graph.initializer if _is_true(one)}
    nodes = [(graph, node) for graph in graphs for node in graph.node]
    true |= {
        node.output[0]
        for _, node in nodes
        if node.op_type == "Constant" and any(_is_true(one.t) for one in node.attribute)
    }
    return [(graph, node) for graph, node in nodes if _trains(node, true)]


def _trains(node: onnx.NodeProto, true: set[str]) -> bool:
    if node.domain:
        return False
    if node.op_type == "Dropout":
        return any(name in true for name in node.input[_RATIO_AND_DATA:])
    stated = any(one.name == "training_mode" and one.i for one in node.attribute)
    return node.op_type == "BatchNormalization" and (stated or any(node.output[1:]))


def _is_true(tensor: onnx.TensorProto) -> bool:
    single = tensor.data_type == onnx.TensorProto.BOOL and all(one == 1 for one in tensor.dims)
    return single and bool(numpy_helper.to_array(tensor).item())
