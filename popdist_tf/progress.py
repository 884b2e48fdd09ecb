"""Tells poprun how far a Keras or Estimator training is: its status line and ``--json`` show it.

Keras' own progress bar is that of instance 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist.metrics import note_step
from popdist.program_status import is_watched
from popdist_tf.collectives.instances import place_in_job
from popdist_tf.hooks import add_callbacks, change_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def report_fits() -> None:
    """Makes every ``fit`` of a Keras model report its steps to poprun; safe to call again."""
    if is_watched():
        add_callbacks("progress", lambda _model, _fit: ([], [_Epochs()]))
    for method in ("fit", "evaluate", "predict"):
        change_arguments(method, "progress", _without_bar)


def _without_bar(arguments: dict[str, Any]) -> None:
    """Leaves the bar to instance 0, unless the program asks for one by a number."""
    if arguments.get("verbose", "auto") == "auto" and place_in_job()[1]:
        arguments["verbose"] = 0


def reporting_hooks(iterations: int) -> Sequence[Any]:
    """The hooks by which a session's training reports its steps to poprun.

    Args:
        iterations: Steps of a run of the session.
    """
    return [_Runs(iterations)] if is_watched() else []


class _Epochs(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Reports each step of ``fit``; the loss is the epoch's mean so far, as Keras' bar shows it."""

    _supports_tf_logs = True  # else Keras copies the loss to the host in every step

    def __init__(self) -> None:
        super().__init__()
        self._before = self._done = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts from the steps of the epochs before, also of those before a resumed one."""
        del logs
        steps = self.params.get("steps")
        self._before = self._done if steps is None else epoch * steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reports; of an execution of several steps Keras names the last one."""
        self._done = self._before + batch + 1
        loss = (logs or {}).get("loss")
        self._note(None if loss is None else lambda: float(loss))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reports the epoch's loss."""
        del epoch
        loss = (logs or {}).get("loss")
        self._note(None if loss is None else float(loss))

    def _note(self, loss: float | Callable[[], float] | None) -> None:
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        total = None if steps is None or epochs is None else steps * epochs
        note_step(loss=loss, step=self._done, total=total)


class _Runs(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Reports each run of a session; the loss is not read, as that would fetch it."""

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._done = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Reports."""
        del run_context, run_values
        self._done += self._iterations
        note_step(step=self._done)
