"""`train` and `Trainer`: a model, a loss, an optimizer, arrays; everything else is looked after."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from popdist import backend
from popdist.nearest import did_you_mean
from popdist_onnx.errors import ArgumentError, ValueRangeError
from popdist_onnx.graph.large_files import write_model
from popdist_onnx.runtime.collectives import digest, require_agreement
from popdist_onnx.session.devices import DeviceManager
from popdist_onnx.session.inference import InferenceSession
from popdist_onnx.session.step_io import PyStepIO
from popdist_onnx.session.training import TrainingSession
from popdist_onnx.session.weights import PyWeightsIO
from popdist_onnx.training.data import Array, Data, indices, sample_count, updates_of
from popdist_onnx.training.job import current_job
from popdist_onnx.training.model import trainable, with_batch, with_stored_fills
from popdist_onnx.training.optimizers import optimizer_of
from popdist_onnx.types import AnchorReturnType, DataFlow, ReductionType, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from os import PathLike

    import onnx
    from numpy.typing import ArrayLike

    from popdist_onnx.graph.load import Source
    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.runtime.state import Array
    from popdist_onnx.training.job import Job


# Do all instances train on the same data set in the same order? Asked before the first update.


_LOOKED_AT = 64


def require_same_training(job: Job, data: Mapping[str, Array], **facts: object) -> None:
    """Compares what decides how many updates are made, and of which samples.

    Where it differs, an instance waits for an update that another never makes, or samples are
    taken twice and others never. Of a data set's values a few samples are compared: who has divided
    it already differs in all of them.

    Args:
        job: This process's place in its job.
        data: The data set; arrays with the samples as first dimension, by id.
        **facts: What must be equal on all instances.

    Raises:
        popart_exception: Instances differ; raised on all of them.
    """
    if job.total_replicas == job.local_replicas:
        return
    looks = {f"values of {name}": digest(_few(array)) for name, array in data.items()}
    require_agreement(
        {name.replace("_", " "): str(value) for name, value in facts.items()} | looks,
        backend.connect("torch"),
        hint="give every instance the whole data set and the same settings; fit takes this "
        "instance's part of every global batch by itself",
    )


def _few(array: Array) -> Array:
    last = len(array) - 1
    few: Array = array[np.linspace(0, last, min(len(array), _LOOKED_AT), dtype=np.int64)]
    return few


# Settings of the front door: those that exist, with numbers that make sense.


def require_known(function: Callable[..., Any], given: Iterable[str]) -> None:
    """Checks names of settings against those that a function takes.

    Args:
        function: The function.
        given: The names.

    Raises:
        ArgumentError: It takes no such setting.
    """
    known = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for name in given:
        if name not in known:
            raise ArgumentError(
                "PD579",
                f"there is no setting {name}",
                accepted=", ".join([*known, "epochs"]),
                hint=did_you_mean(name, known),
            )


def require_positive(**numbers: object) -> None:
    """Checks counts.

    Args:
        **numbers: Counts by name.

    Raises:
        ValueRangeError: One is no positive whole number.
    """
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueRangeError(
                "PD579", f"{name} is a positive whole number", value=number, accepted="1 or more"
            )


class Trainer:
    """Trains an ONNX model on arrays.

    Under poprun the model is trained by all replicas of all instances together, each with its part
    of the data; under mpirun or horovodrun likewise, once the program has called
    ``popdist_onnx.horovod.init()``. Gradients are means over the global batch.

    Args:
        model: The model: a file, its content, or a proto.
        loss: ``"cross_entropy"`` (labels are class numbers) or ``"mse"`` of the model's first
            output; or the id of a scalar tensor where the model computes its loss itself.
        optimizer: How weights are updated: ``"sgd"``, ``"momentum"``, ``"adam"``, ``"adamw"``,
            ``"adamax"``, ``"lamb"``, ``"rmsprop"``, ``"adagrad"``, ``"adadelta"``, with torch's
            values for the rest, or an optimizer object; SGD with momentum 0.9 if None.
        learning_rate: Of a named optimizer; None takes the usual one (0.01 for momentum).
        batch_size: Samples of a micro-batch.
        accumulation: Micro-batches per weight update and replica.
        seed: Of the order of samples and of random operators.
        check_finite: Whether a step stops at the first tensor that is not finite, and names it.

    Raises:
        popart_exception: The model, the loss or the optimizer cannot be used.
    """

    def __init__(
        self,
        model: Source,
        *,
        loss: str = "cross_entropy",
        optimizer: Optimizer | str | None = None,
        learning_rate: float | None = None,
        batch_size: int = 32,
        accumulation: int = 1,
        seed: int = 0,
        check_finite: bool = False,
    ) -> None:
        require_positive(batch_size=batch_size, accumulation=accumulation)
        chosen = optimizer_of(optimizer, learning_rate)
        self._job = current_job()
        self._original = with_stored_fills(_copy(model))
        self._model = with_batch(self._original, batch_size)
        self._batch = batch_size
        self._accumulation = accumulation
        self._seed = seed
        self._epoch = 0
        proto, self._loss, classes = trainable(self._model, loss)
        self._data = Data.of(proto, classes)
        self._samples = Data.of(self._model, None)
        self._options = self._session_options()
        self._options.enableFloatingPointChecks = check_finite
        self.session = TrainingSession(
            proto,
            DataFlow(1, {self._loss: AnchorReturnType("All")}),
            self._loss,
            chosen,
            DeviceManager().createCpuDevice(),
            userOptions=self._options,
        )
        self.session.prepareDevice()
        if self.session.is_random:
            self.session.setRandomSeed(seed)
        if self._job.horovod is not None:
            self.session.connect_horovod(self._job.horovod)
        self.session.weightsFromHost()

    def fit(
        self,
        inputs: ArrayLike | Mapping[str, ArrayLike],
        labels: ArrayLike | None = None,
        *,
        epochs: int = 1,
        shuffle: bool = True,
    ) -> list[float]:
        """Trains for some epochs; call it again to go on.

        Args:
            inputs: Samples, first dimension; with several inputs, arrays by id. Every process gets
                the whole data set and takes its part.
            labels: What the loss compares with; None where the model computes its loss itself.
            epochs: Passes over the data.
            shuffle: Whether the order is drawn anew for each.

        Returns:
            For each epoch the mean loss over all samples of the job.

        Raises:
            popart_exception: The data do not fit the model, or the instances have different ones.
        """
        require_positive(epochs=epochs)
        data = self._data.named(inputs, labels)
        samples = sample_count(data)
        require_same_training(
            self._job,
            data,
            samples=samples,
            batch_size=self._batch,
            epochs=epochs,
            shuffle=shuffle,
            seed=self._seed,
        )
        size = self._batch * self._accumulation * self._job.total_replicas
        updates = updates_of(samples, size)
        anchors = self.session.initAnchorArrays()
        history: list[float] = []
        with tqdm(
            total=epochs * updates,
            unit="update",
            desc="Training",
            disable=None if self._job.first else True,
        ) as bar:
            for _ in range(epochs):
                order = (self._seed, self._epoch) if shuffle else None
                total = 0.0
                for chosen in indices(
                    samples,
                    batch=self._batch,
                    accumulation=self._accumulation,
                    job=self._job,
                    order=order,
                ):
                    step = {n: np.ascontiguousarray(a[chosen]) for n, a in data.items()}
                    self.session.run(PyStepIO(step, anchors))
                    total += float(anchors[self._loss].mean())
                    bar.update()
                self._epoch += 1
                history.append(self._over_job(total / updates))
                bar.set_postfix(epoch=self._epoch, loss=f"{history[-1]:.4f}")
        return history

    def predict(self, inputs: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Computes the model's first output as it is trained so far.

        Args:
            inputs: Samples, as for `fit`.

        Returns:
            The output for each sample.

        Raises:
            popart_exception: The data do not fit the model.
        """
        data = self._samples.named(inputs)
        samples = sample_count(data)
        output = self._model.graph.output[0].name
        options = SessionOptions()
        options.constantWeights = False
        session = InferenceSession(
            self._model,
            DataFlow(1, {output: AnchorReturnType("All")}),
            DeviceManager().createCpuDevice(),
            userOptions=options,
        )
        session.prepareDevice()
        session.writeWeights(PyWeightsIO(self._present()))
        session.weightsFromHost()
        anchors = session.initAnchorArrays()
        parts = []
        for start in range(0, samples, self._batch):
            # The last batch is filled up by repeating its last sample.
            chosen = np.minimum(np.arange(start, start + self._batch), samples - 1)
            step = {name: np.ascontiguousarray(array[chosen]) for name, array in data.items()}
            session.run(PyStepIO(step, anchors))
            parts.append(anchors[output][: samples - start].copy())
        return np.concatenate(parts)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the model with its trained weights, otherwise as it was given.

        For a file that training can be resumed from exactly, see ``session.modelToHost``.

        Args:
            path: The file.
        """
        write_model(self._original, self._present(), Path(path))

    @property
    def weights(self) -> dict[str, Array]:
        """The model's weights as trained so far, by id."""
        return {name: array.copy() for name, array in self._present().items()}

    def _present(self) -> dict[str, Array]:
        """The weights where they lie; the next update changes them."""
        state = self.session.prepared_engine("weights").state
        names = [tensor.name for tensor in self._original.graph.initializer]
        return {name: state.read(name) for name in names if name in state}

    def _session_options(self) -> SessionOptions:
        options = SessionOptions()
        options.enableGradientAccumulation = self._accumulation > 1
        options.accumulationFactor = self._accumulation
        options.accumulationAndReplicationReductionType = ReductionType.Mean
        options.enableReplicatedGraphs = self._job.local_replicas > 1
        options.replicatedGraphCount = self._job.local_replicas
        options.enableDistributedReplicatedGraphs = (
            self._job.total_replicas > self._job.local_replicas
        )
        options.globalReplicationFactor = self._job.total_replicas
        options.globalReplicaOffset = self._job.first_replica
        options.hostAllReduce = self._job.horovod is not None
        return options

    def _over_job(self, loss: float) -> float:
        if self._job.total_replicas == self._job.local_replicas:
            return loss
        from popdist_onnx import horovod

        weighted = np.asarray([loss * self._job.local_replicas], np.float64)
        total = horovod.allreduce(weighted, op=horovod.Sum, name="popdist_onnx.epoch_loss")
        return float(total[0]) / self._job.total_replicas


def train(
    model: Source,
    inputs: ArrayLike | Mapping[str, ArrayLike],
    labels: ArrayLike | None = None,
    *,
    epochs: int = 1,
    **settings: Any,
) -> Trainer:
    """Trains an ONNX model on arrays.

    Args:
        model: The model: a file, its content, or a proto.
        inputs: Samples, first dimension; with several inputs, arrays by id.
        labels: What the loss compares with; None where the model computes its loss itself.
        epochs: Passes over the data.
        **settings: Those of `Trainer`: ``loss``, ``optimizer``, ``learning_rate``,
            ``batch_size``, ...

    Returns:
        The trainer, to save or to go on with.

    Raises:
        popart_exception: The model, the settings or the data cannot be used.
    """
    require_known(Trainer, settings)
    trainer = Trainer(model, **settings)
    trainer.fit(inputs, labels, epochs=epochs)
    return trainer


def _copy(source: Any) -> onnx.ModelProto:
    import onnx

    from popdist_onnx.graph.load import read

    proto = onnx.ModelProto()
    proto.CopyFrom(read(source))
    return proto
