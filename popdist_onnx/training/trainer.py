"""`train` and `Trainer`: train a model from a loss, an optimizer and data."""

from __future__ import annotations

import inspect
import json
import logging
import os
import shutil
import weakref
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from popdist.checks import is_enabled
from popdist.metrics import note_phase
from popdist.nearest import did_you_mean
from popdist.recording import recording
from popdist_onnx.checks import PARTS
from popdist_onnx.errors import ArgumentError, ValueRangeError, popart_exception
from popdist_onnx.graph.exporters import freeze_constants, with_linear_weights
from popdist_onnx.graph.large_files import has_large_content, moved_to_file, write_model
from popdist_onnx.graph.load import read
from popdist_onnx.graph.names import reserved_prefix
from popdist_onnx.session.training import RANDOM_STATE
from popdist_onnx.training.callbacks import History, callbacks_of
from popdist_onnx.training.data import Array, Data, Layout, sample_count, updates_of
from popdist_onnx.training.local_replicas import current_job
from popdist_onnx.training.model import (
    LOSSES,
    has_open_batch,
    hint_of_weights,
    main_output,
    mark_frozen,
    stated_loss,
    with_stored_fills,
    without_labels,
)
from popdist_onnx.training.settings import (
    clipped,
    optimizer_of,
    require_flag,
    require_known,
    require_positive,
    require_schedule,
    require_seed,
)
from popdist_onnx.training.sources import gathered, source_of
from popdist_onnx.training.updates import Epochs, Updates, sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from os import PathLike

    import onnx_ir as ir
    from numpy.typing import ArrayLike

    from popdist_onnx.checks.parts import PartsProbe
    from popdist_onnx.graph.load import Source
    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.training.callbacks import Callback
    from popdist_onnx.training.evaluation import Evaluator, Measures, Metric
    from popdist_onnx.training.sources import Source as Samples

logger = logging.getLogger("popdist.onnx")

_CHECKPOINT = "popdist.training"
"""Metadata key of checkpoints: history, number of updates and seed, as JSON."""

_PAIR = 2


class Trainer:
    """Trains an ONNX model.

    Under poprun the model is trained by all replicas of all instances together, each with its part
    of the data; under mpirun or horovodrun likewise, once the program has called
    ``popdist_onnx.horovod.init()``. Gradients are means over the global batch.

    Args:
        model: The model: a file, its content, or a proto, as `from_torch` makes it.
        loss: ``"cross_entropy"`` (labels are class numbers) or ``"mse"`` of the model's first
            floating-point output; or the id of a scalar tensor where the model computes its loss
            itself. None takes what `from_torch` wrote into the model, else cross entropy.
        optimizer: How weights are updated: ``"sgd"``, ``"momentum"``, ``"adam"``, ``"adamw"``,
            ``"adamax"``, ``"lamb"``, ``"rmsprop"``, ``"adagrad"``, ``"adadelta"``, with torch's
            values for the rest, or an optimizer object; SGD with momentum 0.9 if None.
        learning_rate: Of a named optimizer; None takes the usual one (0.01 for momentum).
        batch_size: Samples of a micro-batch.
        accumulation: Micro-batches per weight update and replica.
        seed: Of the order of samples and of random operators.
        check_finite: Whether a step stops at the first tensor that is not finite, and names it.
        freeze: Weights that are not trained: names, or patterns such as ``"encoder.*"``. Exporters
            give some weights other names (``onnx::MatMul_279``): `summary` shows who reads them.
        train: The only weights that are trained, where given: names, or patterns.
        clip_norm: The largest norm of all gradients together; None does not clip.
        metrics: What is measured on validation data beside the loss: ``"accuracy"``,
            ``"absolute_error"``, or functions by name, from outputs and labels to a number per
            sample (or one for all of them).

    Attributes:
        session: The training session.
        stop: Set by a callback to end the training after the epoch.

    Raises:
        popart_exception: The model or a setting cannot be used.
    """

    def __init__(
        self,
        model: Source,
        *,
        loss: str | None = None,
        optimizer: Optimizer | str | None = None,
        learning_rate: float | None = None,
        batch_size: int = 32,
        accumulation: int = 1,
        seed: int = 0,
        check_finite: bool = True,
        freeze: str | Iterable[str] = (),
        train: str | Iterable[str] | None = None,
        clip_norm: float | None = None,
        metrics: Iterable[str] | Mapping[str, Metric] = (),
    ) -> None:
        require_positive(batch_size=batch_size, accumulation=accumulation)
        require_seed(seed)
        self._job = current_job()
        if (found := recording()) is not None:
            batch_size *= found.replicas  # one process computes the micro-batches of all replicas
        if loss is not None and not isinstance(loss, str):
            raise ArgumentError(
                "PD579",
                "the loss of a training is a name",
                value=getattr(loss, "__name__", type(loss).__name__),
                accepted=f"{', '.join(LOSSES)}, or the id of a scalar tensor of the model",
                hint="from_torch(module, inputs, loss=function, example_labels=labels) exports a "
                "function with the module",
            )
        self._original = self._own(model)
        mark_frozen(self._original, freeze, train)
        self._loss_kind = loss or stated_loss(self._original) or "cross_entropy"
        self._metrics: dict[str, Metric] = {}
        if metrics:
            from popdist_onnx.training.evaluation import metrics_of

            self._metrics = metrics_of(metrics)
        self._optimizer = clipped(optimizer_of(optimizer, learning_rate), clip_norm)
        self._layout = Layout(batch_size, accumulation, self._job)
        self.stop = False
        note_phase("compiling", between_steps=True)
        self._check_finite = check_finite
        self._usual = self._compiled(self._layout)
        self._smaller: Updates | None = None
        self._source: Samples | None = None
        self._model, self._data = self._usual.model, self._usual.data
        self._predictor: Evaluator | None = None
        self._measures: Measures | None = None
        self.session = self._usual.session
        if self.session.is_random:
            self.session.setRandomSeed(seed)
        self._checks = [] if self._usual.divisors.is_judged else self._probes()
        self._epochs = Epochs(self._usual, self._optimizer, self._of_layout, seed)

    def _probes(self) -> list[PartsProbe]:
        """The measurement of parts, unless it is switched off."""
        if not is_enabled(PARTS):
            return []
        from popdist_onnx.checks.parts import PartsProbe

        return [
            PartsProbe(
                lambda samples: sized(self._original, samples),
                self._loss_kind,
                self._layout.batch,
                self.trained,
                is_rewritten=bool(self._usual.divisors.names),
                warns=self._job.first,
            )
        ]

    def _compiled(self, layout: Layout, name: str = "training") -> Updates:
        return Updates(
            self._original,
            self._loss_kind,
            self._optimizer,
            layout,
            check_finite=self._check_finite,
            name=name,
        )

    def _of_layout(self, layout: Layout) -> Updates:
        """The model, compiled for smaller updates; the latest size is kept."""
        if self._smaller is None or self._smaller.layout.size != layout.size:
            self._smaller = self._compiled(layout, f"training, updates of {layout.size} samples")
            if self._source is not None:
                self._smaller.divisors.prepare(self._source, warn=False)
        return self._smaller

    @property
    def history(self) -> History:
        """All epochs so far, those before a checkpoint included."""
        return self._epochs.history

    def fit(
        self,
        inputs: Any,
        labels: ArrayLike | None = None,
        *,
        epochs: int = 1,
        shuffle: bool = True,
        validation: Any = None,
        callbacks: Iterable[Callback | Callable[[Trainer, dict[str, float]], Any]] = (),
        schedule: Callable[[int], float] | None = None,
        progress: bool | None = None,
        drop_last: bool = False,
    ) -> History:
        """Trains for some epochs; call it again to continue.

        Args:
            inputs: Samples, first dimension; with several inputs, arrays by id; a tuple of two
                arrays is ``(inputs, labels)``. Or a data set with a length and an index (as torch
                has them, or a list of ``(input, label)``), a ``tf.data.Dataset``, a DataLoader or
                anything else to iterate, or a function that returns an iterator for each epoch;
                elements are ``(inputs, labels)`` or dictionaries by input, samples or batches of
                any size. Every instance gets the whole data and takes its part.
            labels: What the loss compares with; None where the model computes its loss itself, or
                the data bring their labels.
            epochs: Passes over the data.
            shuffle: Whether the order is drawn again for each; what is iterated has its own order.
            validation: ``(inputs, labels)``, inputs alone, or data of any other kind that
                ``inputs`` may have, to be measured after each epoch; read once, and the same on
                all instances.
            callbacks: `Callback` objects, or functions of trainer and record after each epoch.
            schedule: The learning rate of each update, by its number from 0 (over all calls).
            progress: Whether a progress bar is shown, by the job's first instance only; None shows
                it on a terminal.
            drop_last: Whether samples that do not fill an update at the end of an epoch are left
                out. By default they are a smaller update, in which each has the same weight.

        Returns:
            For each epoch of this call the mean loss over all samples of the job; its ``records``
            have everything that was measured.

        Raises:
            popart_exception: The data do not fit the model, or the instances have different ones.
        """
        require_positive(epochs=epochs)
        if not self.session.trained_weights:
            raise popart_exception(
                "PD545",
                "the model has no weights to train",
                value=list(self._original.graph.initializers)[:12],
                accepted="floating-point initializers that reach the loss and are not frozen",
                hint=hint_of_weights(self._original),
            )
        require_flag(shuffle=shuffle, drop_last=drop_last)
        drop_last = drop_last or not has_open_batch(self._original)
        source = self._source_of(inputs, labels, epochs, drop_last=drop_last)
        first = source.first()
        self._job.require_same(
            first,
            samples=source.samples,
            batch_size=self._layout.batch,
            epochs=epochs,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=self._epochs.seed,
            labels_left_out=self._usual.divisors.prepare(source),
        )
        called = callbacks_of(callbacks)
        require_schedule(schedule)
        held_out = None if validation is None else self._held_out(*_pair(validation))
        updates = (
            None
            if source.samples is None
            else updates_of(source.samples, self._layout.size, drop_last=drop_last)
        )
        history = History()

        def updated(update: int, loss: float) -> None:
            for callback in called:
                callback.on_update_end(self, update, loss)

        self.stop = False
        for callback in called:
            callback.on_train_begin(self)
        with tqdm(
            total=None if updates is None else epochs * updates,
            unit="update",
            desc="Training",
            disable=(None if progress is None else not progress) if self._job.first else True,
        ) as bar:
            for _ in range(epochs):
                record = self._epochs.run(
                    source, self._divisors_of, updated, bar, schedule, shuffle=shuffle
                )
                if held_out is not None:
                    found = self._measured(held_out)
                    record |= {f"val_{name}": value for name, value in found.items()}
                history.add(record)
                self.history.add(record)
                for callback in called:
                    callback.on_epoch_end(self, dict(record))
                words = {name: f"{value:.4g}" for name, value in record.items() if name != "epoch"}
                bar.set_postfix(epoch=int(record["epoch"]), **words)
                if self._stop_asked():
                    break
        return history

    def evaluate(self, inputs: Any, labels: ArrayLike | None = None) -> dict[str, float]:
        """Measures loss and metrics of the model as it is for inference.

        Args:
            inputs: Samples, of any kind that `fit` takes; every instance gets all of them and
                measures its part.
            labels: What the loss compares with, where ``inputs`` are arrays.

        Returns:
            The mean loss over all samples as ``loss``, and the mean of each metric by its name.

        Raises:
            popart_exception: The data do not fit the model, the instances have different ones, or
                there are fewer samples than a batch in a model that computes its loss itself.
        """
        return self._measured(self._held_out(inputs, labels))

    def _measured(self, data: Mapping[str, Array]) -> dict[str, float]:
        """Loss and metrics of samples that all instances have."""
        from popdist_onnx.training.evaluation import Measures

        if self._measures is None:
            self._measures = Measures(
                self._model, self._loss_kind, self._metrics, self._layout.batch, self._job
            )
        return self._measures.of(self._present(), data)

    def predict(self, inputs: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Computes the model's first floating-point output, in inference mode, as trained so far.

        Args:
            inputs: Samples, as arrays.

        Returns:
            The output for each sample.

        Raises:
            popart_exception: The data do not fit the model.
        """
        from popdist_onnx.training.evaluation import Evaluator, in_inference_mode

        output = main_output(self._model)
        forward = in_inference_mode(without_labels(self._model))
        data = Data.of(forward, None).named(inputs)
        if self._predictor is None:
            self._predictor = Evaluator(forward, [output], self._layout.batch)
        batches = self._predictor.run(self._present(), data, sample_count(data))
        return np.concatenate([found[output].copy() for _, found in batches])

    def save(self, path: str | PathLike[str], *, inference: bool | None = None) -> None:
        """Writes the model with its trained weights, otherwise as it was given.

        For a file that training can be resumed from exactly, see `save_checkpoint`.

        Args:
            path: The file.
            inference: Whether batch normalisation and dropout are switched to inference mode; None
                keeps them, and warns where a model was exported in training mode.
        """
        from popdist_onnx.training.evaluation import in_inference_mode, modes

        found = modes(self._original)
        if inference is None and "BatchNormalization" in found and self._job.first:
            logger.warning(
                "%s is saved with %s in training mode, as the model was exported: ONNX Runtime "
                "computes with the statistics of each batch. save(path, inference=True) writes a "
                "file for inference, inference=False keeps the mode",
                path,
                " and ".join(found),
            )
        model = in_inference_mode(self._original) if inference else self._original
        write_model(model, self._present(), Path(path))

    def save_checkpoint(self, path: str | PathLike[str]) -> None:
        """Writes all that `resume` needs: weights, optimizer state, random streams, history.

        Every instance may call it; the job's first one writes. It may be called in the middle of
        an epoch too, by `Callback.on_update_end`.

        Args:
            path: The file; an older one is replaced once the new one is whole.
        """
        if not self._job.first:
            return
        self.session.properties[_CHECKPOINT] = json.dumps(self._epochs.state())
        self.session.write_variables(self._original, path)

    def resume(self, path: str | PathLike[str]) -> None:
        """Resumes where a checkpoint was written; every instance calls it.

        The next `fit` takes the samples in the order in which the training would have continued.
        Its first epoch is the rest of one in whose middle the checkpoint was written; the mean loss
        of that epoch counts what the first instance had before.

        Args:
            path: The file; in a job only the first instance needs it.

        Raises:
            popart_exception: It is not a checkpoint, or one of another model or optimizer.
        """
        state: dict[str, Any] = {}
        if self._job.first:
            state = self._read_checkpoint(path)
        state = self._job.from_first(state)
        if "error" in state:
            raise popart_exception("PD585", state["error"], value=state.get("seen") or str(path))
        if self._job.is_shared:
            self.session.broadcastWeights(0)
        self.session.weightsFromHost()
        engine = self.session.prepared_engine("resume")
        engine.seed, engine.micro_batches = state["random"]
        self._epochs.restore(state)

    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replaces weights; optimizer state stays.

        Args:
            weights: Arrays by id; weights that are not named stay too.

        Raises:
            ValueRangeError: There is no such weight, or an array does not fit.
        """
        present = self._present()
        for name, content in weights.items():
            array = np.asarray(content)
            if name not in present or array.shape != present[name].shape:
                raise ValueRangeError(
                    "PD583",
                    f"no weight '{name}' of this shape",
                    value=list(array.shape),
                    accepted=str(list(present[name].shape)) if name in present else None,
                    hint=did_you_mean(name, present),
                )
        state = self.session.prepared_engine("load_weights").state
        for name, content in weights.items():
            state.write(name, np.asarray(content).astype(present[name].dtype))

    @property
    def weights(self) -> dict[str, Array]:
        """The model's weights as trained so far, by id."""
        return {name: array.copy() for name, array in self._present().items()}

    @property
    def metadata(self) -> dict[str, str]:
        """The notes in the model's file, by key."""
        return dict(self._original.metadata_props)

    @property
    def trained(self) -> list[str]:
        """The ids of the weights that training changes."""
        return self.session.trained_weights

    def summary(self) -> str:
        """What will be trained and what will not, as a table.

        Returns:
            A line for each floating-point initializer: its type and shape, and whether it is
            trained, frozen, a running statistic, or without a gradient.
        """
        from popdist_onnx.training.summary import weight_summary

        return weight_summary(self._original, self.trained)

    def _own(self, source: Source) -> ir.Model:
        """A model of the trainer's own; large weights lie in a file while the trainer lives."""
        model = read(source)
        if has_large_content(model):
            folder = mkdtemp(prefix="popdist-onnx-")
            weakref.finalize(self, _remove, folder, os.getpid())
            model = moved_to_file(model, Path(folder))
        freeze_constants(model)
        _remove_state(model)
        with_linear_weights(model)
        with_stored_fills(model)
        return model

    def _divisors_of(self, of: Updates, step: Mapping[str, Array]) -> Mapping[str, Array]:
        if of is self._usual:
            for check in self._checks:
                check.before_update(step, self._present)
        return of.divisors.of(step, self._present) if of.divisors.names else {}

    def _source_of(self, inputs: Any, labels: Any, epochs: int, *, drop_last: bool) -> Samples:
        """The samples of a `fit`."""
        source = source_of(inputs, labels, self._data, self._layout, epochs, drop_last=drop_last)
        self._source = source
        if self._smaller is not None:
            self._smaller.divisors.prepare(source, warn=False)
        if not has_open_batch(self._original):
            self._warn_of_rest(source.samples)
        return source

    def _warn_of_rest(self, samples: int | None) -> None:
        rest = 0 if samples is None else samples % self._layout.size
        if rest and self._job.first:
            logger.warning(
                "the model's file fixes the number of samples of a batch: the last %d of %d "
                "samples of each epoch are not trained; export it with an open batch dimension",
                rest,
                samples,
            )

    def _held_out(self, inputs: Any, labels: ArrayLike | None) -> dict[str, Array]:
        """Data to be measured, the same on all instances."""
        data = gathered(inputs, labels, self._data)
        samples = sample_count(data)
        self._job.require_same(data, validation_samples=samples)
        if self._loss_kind not in LOSSES and samples < self._layout.batch:
            raise popart_exception(
                "PD579",
                "the model computes its loss of whole batches only",
                value=f"{samples} samples",
                accepted=f"{self._layout.batch} or more",
            )
        return data

    def _present(self) -> dict[str, Array]:
        """The weights in their memory; the next update changes them."""
        state = self.session.prepared_engine("weights").state
        names = self._original.graph.initializers
        return {name: state.read(name) for name in names if name in state}

    def _read_checkpoint(self, path: str | PathLike[str]) -> dict[str, Any]:
        """The state in a file, whose weights become the host's; an error is returned as a text."""
        try:
            model = read(path)
            properties = model.metadata_props
            if _CHECKPOINT not in properties:
                return {"error": "the file is no checkpoint: write it with save_checkpoint"}
            stored = model.graph.initializers
            missing = [name for name in self.session.saved_variables if name not in stored]
            if missing:
                return {"error": f"the checkpoint has no {missing[0]}: its optimizer was another"}
            self.session.resetHostWeights(model)
        except popart_exception as error:
            return {"error": error.what, "seen": error.value}
        words = properties.get(RANDOM_STATE, "0 0").split()
        found: dict[str, Any] = json.loads(properties[_CHECKPOINT])
        return found | {"random": [int(word) for word in words]}

    def _stop_asked(self) -> bool:
        return self._job.summed({"stop": float(self.stop)})["stop"] > 0


def train(
    model: Source,
    inputs: Any,
    labels: ArrayLike | None = None,
    **settings: Any,
) -> Trainer:
    """Trains an ONNX model.

    Args:
        model: The model: a file, its content, or a proto, as `from_torch` makes it.
        inputs: Arrays, a data set, or something to iterate; see `Trainer.fit`.
        labels: What the loss compares with.
        **settings: Those of `Trainer` (``loss``, ``optimizer``, ``learning_rate``, ``batch_size``,
            ``freeze``, ...) and of `Trainer.fit` (``epochs``, ``validation``, ``callbacks``, ...).

    Returns:
        The trainer, to save or to continue.

    Raises:
        popart_exception: The model, the settings or the data cannot be used.
    """
    fitting = [one.name for one in _keywords(Trainer.fit)]
    require_known([one.name for one in _keywords(Trainer)] + fitting, settings)
    trainer = Trainer(model, **{n: v for n, v in settings.items() if n not in fitting})
    has_weights = bool(trainer.session.prepared_engine("train").state.names)
    if has_weights and current_job().first and logger.isEnabledFor(logging.INFO):
        logger.info("what is trained:\n%s", trainer.summary())
    trainer.fit(inputs, labels, **{n: v for n, v in settings.items() if n in fitting})
    return trainer


def _pair(validation: Any) -> tuple[Any, Any]:
    is_pair = isinstance(validation, tuple | list) and len(validation) == _PAIR
    return (validation[0], validation[1]) if is_pair else (validation, None)


def _keywords(function: Callable[..., Any]) -> list[inspect.Parameter]:
    given = inspect.signature(function).parameters.values()
    return [one for one in given if one.kind is inspect.Parameter.KEYWORD_ONLY]


def _remove_state(model: ir.Model) -> None:
    """Makes a model of a checkpoint: what updates and `Trainer.resume` read goes."""
    if _CHECKPOINT not in model.metadata_props:
        return
    for name in list(model.graph.initializers):
        if reserved_prefix(name):
            del model.graph.initializers[name]
    for key in (_CHECKPOINT, RANDOM_STATE):
        model.metadata_props.pop(key, None)


def _remove(folder: str, owner: int) -> None:
    # Not by what the process forks: a loader of data, for example.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
