"""Loss and metrics of a model on validation data, and models as they are for inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import ArgumentError, ValueRangeError
from popdist_onnx.graph.compat import clone, replace_uses
from popdist_onnx.graph.values import operand, stored
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
        model: The model, with a fixed batch size.
        outputs: The tensors to return.
        batch: Samples of a batch.
    """

    def __init__(self, model: ir.Model, outputs: Iterable[str], batch: int) -> None:
        options = SessionOptions()
        options.constantWeights = False
        self._batch = batch
        self._outputs = list(outputs)
        flow = DataFlow(1, dict.fromkeys(self._outputs, AnchorReturnType("All")))
        device = DeviceManager().createCpuDevice()
        self._session = InferenceSession(
            model, flow, device, userOptions=options, name="evaluation"
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
        model: ir.Model,
        loss: str,
        metrics: Mapping[str, Metric],
        batch: int,
        job: LocalReplicas,
    ) -> None:
        self._batch, self._job, self._metrics = batch, job, metrics
        # A loss inside the model belongs to a whole batch, of which every process has all samples.
        self._by_label = loss in LOSSES
        self._output = main_output(model)
        measured, self._loss, _ = trainable(in_inference_mode(model), loss, evaluation=True)
        self._evaluator = Evaluator(measured, dict.fromkeys([self._output, self._loss]), batch)

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


def in_inference_mode(model: ir.Model) -> ir.Model:
    """A copy of a model, in inference mode; the model itself where it has no other mode."""
    if not modes(model):
        return model
    made = clone(model)
    for node in _training(made):
        _switch(node)
    return made


def _switch(node: ir.Node) -> None:
    """Replaces a node by one in inference mode, whose outputs have the same names."""
    graph = node.graph
    assert graph is not None  # noqa: S101 - it was found there
    is_dropout = node.op_type == "Dropout"
    made = ir.Node(
        node.domain,
        node.op_type,
        node.inputs[:_RATIO_AND_DATA] if is_dropout else node.inputs,
        [one for one in node.attributes.values() if one.name != "training_mode"],
        outputs=[_twin(value) for value in (node.outputs if is_dropout else node.outputs[:1])],
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    nodes = [made]
    if not is_dropout:
        # A module that is used several times passes its statistics on.
        nodes += [
            ir.Node("", "Identity", [given], outputs=[_twin(updated)], name="")
            for given, updated in zip(node.inputs[_MEAN:], node.outputs[1:], strict=False)
            if updated.name
        ]
    graph.insert_after(node, nodes)
    twins = {value.name: value for one in nodes for value in one.outputs}
    for value in node.outputs:
        if value.name in twins:
            replace_uses(graph, value, twins[value.name])
    graph.remove(node, safe=True)


def _twin(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, shape=value.shape, type=value.type)


def modes(model: ir.Model) -> list[str]:
    """The operators in training mode."""
    return sorted({node.op_type for node in _training(model)})


def _training(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if not node.domain and _trains(node)]


def _trains(node: ir.Node) -> bool:
    if node.op_type == "Dropout":
        mode = operand(node, _RATIO_AND_DATA)
        content = None if mode is None else stored(mode)
        return content is not None and content.size == 1 and bool(content.all())
    if node.op_type != "BatchNormalization":
        return False
    has_statistics = any(value.name for value in node.outputs[1:])
    return has_statistics or bool(node.attributes.get_int("training_mode", 0))
