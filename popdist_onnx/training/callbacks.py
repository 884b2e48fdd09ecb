"""Callbacks between the epochs of a training: history, early stopping, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from popdist_onnx.errors import ArgumentError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from popdist_onnx.runtime.state import Array


class History(list[float]):
    """The mean loss of each epoch; `records` has all measurements.

    Attributes:
        records: One dictionary per epoch: ``epoch`` (from 1), ``loss``, ``learning_rate``, and with
            validation data ``val_loss`` and ``val_<metric>``.
    """

    def __init__(self, records: Iterable[Mapping[str, float]] = ()) -> None:
        super().__init__()
        self.records: list[dict[str, float]] = []
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, float]) -> None:
        """Appends an epoch."""
        self.records.append(dict(record))
        self.append(record["loss"])

    def of(self, name: str) -> list[float]:
        """One measurement over the epochs.

        Args:
            name: For example ``val_loss``.

        Returns:
            Its value in each epoch.

        Raises:
            ValueRangeError: It was not measured.
        """
        if any(name not in record for record in self.records):
            known = sorted(set().union(*self.records))
            raise ValueRangeError(
                "PD583", f"the history has no '{name}'", accepted=", ".join(known) or "no epoch yet"
            )
        return [record[name] for record in self.records]


class Training(Protocol):
    """The interface of a `Trainer` for callbacks."""

    stop: bool

    @property
    def weights(self) -> dict[str, Array]:
        """A copy of the weights."""

    def load_weights(self, weights: Mapping[str, Array]) -> None:
        """Replaces weights."""

    def save_checkpoint(self, path: str | PathLike[str]) -> None:
        """Writes a checkpoint."""


class Callback:
    """The base of callbacks; a plain function ``f(trainer, record)`` stands for `on_epoch_end`.

    Every instance of a job calls its callbacks. Setting ``trainer.stop = True`` ends the training
    after the epoch, on all instances if one asks for it.
    """

    def on_train_begin(self, trainer: Training) -> None:
        """Called by `Trainer.fit` before the first epoch."""

    def on_update_end(self, trainer: Training, update: int, loss: float) -> None:
        """Called after each weight update with its number, from 0, and this instance's loss."""

    def on_epoch_end(self, trainer: Training, record: dict[str, float]) -> None:
        """Called after each epoch with its measurements; equal on all instances."""


class EarlyStopping(Callback):
    """Ends a training that no longer gets better, and takes back the best weights.

    Args:
        monitor: What is watched: ``val_loss``, ``loss`` or a metric such as ``val_accuracy``.
        patience: Epochs without a better value after which training ends.
        least_change: How much better a value has to be.
        mode: ``min`` where less is better, ``max`` where more is; None takes ``min`` for losses.
        restore_best: Whether the weights of the best epoch are taken back where it ends the
            training; a training that reaches its last epoch keeps that epoch's weights.

    Raises:
        ValueRangeError: The patience is not a positive whole number, or there is no such mode.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 1,
        least_change: float = 0.0,
        mode: str | None = None,
        restore_best: bool = True,
    ) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise ValueRangeError("PD583", "patience is a positive whole number", value=patience)
        if mode not in (None, "min", "max"):
            raise ValueRangeError("PD583", "no such mode", value=mode, accepted="min, max, None")
        self.monitor = monitor
        self._patience = patience
        self._least_change = least_change
        less = monitor.endswith("loss") if mode is None else mode == "min"
        self._sign = 1.0 if less else -1.0
        self._restore = restore_best
        self._best, self._waited = math.inf, 0
        self._weights: dict[str, Array] | None = None

    def on_train_begin(self, trainer: Training) -> None:
        """Resets the best value of an earlier training."""
        del trainer
        self._best, self._waited, self._weights = math.inf, 0, None

    def on_epoch_end(self, trainer: Training, record: dict[str, float]) -> None:
        """Compares, and stops after ``patience`` epochs without a better value."""
        if self.monitor not in record:
            raise ValueRangeError(
                "PD583",
                f"early stopping watches '{self.monitor}', which is not measured",
                accepted=", ".join(record),
                hint="give fit validation data, or watch loss",
            )
        value = self._sign * record[self.monitor]
        if value < self._best - self._least_change:
            self._best, self._waited = value, 0
            self._weights = trainer.weights if self._restore else None
            return
        self._waited += 1
        if self._waited >= self._patience:
            trainer.stop = True
            if self._weights is not None:
                trainer.load_weights(self._weights)


class Checkpoint(Callback):
    """Writes a checkpoint after epochs, from which `Trainer.resume` continues.

    Args:
        path: The file; the job's first instance writes it.
        every: Epochs between two checkpoints.
    """

    def __init__(self, path: str | PathLike[str], *, every: int = 1) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueRangeError("PD583", "every is a positive whole number", value=every)
        self._path, self._every = path, every

    def on_epoch_end(self, trainer: Training, record: dict[str, float]) -> None:
        """Writes the file where it is due."""
        if int(record["epoch"]) % self._every == 0:
            trainer.save_checkpoint(self._path)


class _Function(Callback):
    def __init__(self, function: Any) -> None:
        self._function = function

    def on_epoch_end(self, trainer: Training, record: dict[str, float]) -> None:
        self._function(trainer, record)


def callbacks_of(given: Iterable[Any]) -> list[Callback]:
    """Callbacks unchanged, and functions as callbacks after each epoch.

    Raises:
        ArgumentError: One of them is neither.
    """
    listed = [*given] if isinstance(given, Iterable) else [given]
    for one in listed:
        if not isinstance(one, Callback) and not callable(one):
            raise ArgumentError(
                "PD583",
                "this is not a callback",
                value=type(one).__name__,
                accepted="popdist_onnx.Callback objects, or functions of trainer and record",
            )
    return [one if isinstance(one, Callback) else _Function(one) for one in listed]
