"""Metrics of an instance's training, for ``python -m popdist.report``.

If poprun keeps a run (``--log-dir``), an instance appends to ``metrics.<index>.jsonl`` in the run's
folder; else nothing is written. Programs call `record` once a step. popdist's own exchange of
gradients records the time that an instance waited for it.

A line summarises one or more steps. Lines become rarer as a run grows longer, so that a day of
training leaves a few megabytes. A process that is killed loses the metrics of the last thousandth
of its time.

====================  ==========================================================================
Key                   Meaning
====================  ==========================================================================
``kind``              ``step``, from `record`, or ``exchange``
``time``              when the line was written, in seconds since 1970
``count``             how many steps, or rounds of the exchange, the line stands for
``seconds``           the wall time of these: since the line before of the same kind
``samples``, ``loss`` of steps: the sum of what was given, and the mean
``waited``            of exchanges: seconds in which the instance did nothing but wait for them
``memory``            the most bytes that the process had so far (resident)
====================  ==========================================================================
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import sys
import time

from popdist.errors import ArgumentError
from popdist.popdist_core import topology
from popdist.program_status import is_watched, tell_progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_LINES = 1000
"""A line comes when this part of the time since the first one has gone by since the last."""

_LOSS_SECONDS = 0.5
"""A loss that costs something is read no more often."""

_KIB = 1024


class Series:
    """The lines of one kind.

    Args:
        file: Where they go.
        kind: ``step`` or ``exchange``.
    """

    def __init__(self, file: Lines, kind: str) -> None:
        self._file = file
        self._kind = kind
        self._began = self._last = time.perf_counter()
        self._count = 0
        self._sums: dict[str, float] = {}
        self._given: dict[str, int] = {}

    def add(self, **values: float | None) -> None:
        """Notes one step or round.

        Args:
            **values: What is known of it; None for what is not.
        """
        self._count += 1
        for name, value in values.items():
            if value is not None:
                self._sums[name] = self._sums.get(name, 0.0) + value
                self._given[name] = self._given.get(name, 0) + 1
        now = time.perf_counter()
        if (now - self._last) * _LINES >= now - self._began:
            self.flush()

    def flush(self) -> None:
        """Writes what has come together."""
        if not self._count:
            return
        now = time.perf_counter()
        sums = dict(self._sums)
        if "loss" in sums:
            sums["loss"] /= self._given["loss"]
        self._file.write(
            {
                "kind": self._kind,
                "time": round(time.time(), 6),
                "count": self._count,
                "seconds": round(now - self._last, 6),
                **sums,
                "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
            }
        )
        self._last = now
        self._count = 0
        self._sums.clear()
        self._given.clear()


class Lines:
    """The file of one instance. A place that cannot be written never disturbs the training.

    Args:
        folder: The run's folder.
        instance: The instance's index.
    """

    def __init__(self, folder: str, instance: int) -> None:
        self._path = os.path.join(folder, f"metrics.{instance}.jsonl")  # noqa: PTH118 - as below
        self._pid = os.getpid()
        self._file: TextIO | None = None
        self._broken = False
        self.steps = Series(self, "step")
        self.exchanges = Series(self, "exchange")
        atexit.register(self.close)

    def write(self, line: dict[str, float | int | str]) -> None:
        """Appends a line, at once, so that it survives the process.

        Args:
            line: Its keys and values.
        """
        if self._broken or os.getpid() != self._pid:  # a forked worker is not an instance
            return
        try:
            if self._file is None:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib costs milliseconds
                self._file = open(self._path, "a", buffering=1, encoding="utf-8")  # noqa: PTH123, SIM115 - it stays open
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._broken = True
            print(f"popdist: no metrics are kept in {self._path}: {error}", file=sys.stderr)  # noqa: T201 - the only reader there is

    def close(self) -> None:
        """Writes what is left."""
        self.steps.flush()
        self.exchanges.flush()


_lines: Lines | None = None


def lines() -> Lines | None:
    """The file of this instance.

    Returns:
        The file; None where no run is kept.

    Raises:
        ContractError: The environment contradicts itself.
    """
    global _lines  # noqa: PLW0603 - one file per process
    here = topology()
    if _lines is None and here.run_folder is not None:
        _lines = Lines(here.run_folder, here.instance_index or 0)
    return _lines


class _SoFar:
    """What this process has reported in all."""

    def __init__(self) -> None:
        self.steps = 0
        self._samples = 0
        self._began: float | None = None
        self._loss: float | None = None
        self._read = 0.0

    def rate(self, samples: int | None) -> float | None:
        """Samples per second since the first report, which has been long: it starts everything."""
        now = time.perf_counter()
        if self._began is None:
            self._began = now
            return None
        self._samples += int(samples or 0)
        return self._samples / max(now - self._began, 1e-9) if self._samples else None

    def newest(self, loss: Callable[[], float]) -> float | None:
        """The loss, which is read anew where the last one is old."""
        now = time.perf_counter()
        if self._loss is None or now - self._read >= _LOSS_SECONDS:
            self._loss, self._read = loss(), now
        return self._loss


_so_far = _SoFar()
_adapters = _SoFar()


def report_progress(
    *,
    step: int | None = None,
    total: int | None = None,
    loss: float | None = None,
    samples: int | None = None,
    phase: str = "training",
) -> None:
    """Reports the progress of this instance to poprun, once a step.

    poprun's status line and ``--json`` show the step, the loss, samples per second and the slowest
    instance. If the run is kept (``--log-dir``), the step is recorded there too. Outside of poprun
    the call has no effect. It takes some microseconds; for a loss on a GPU, it waits until the loss
    is computed.

    Args:
        step: The number of finished steps; None for one more than at the last call.
        total: The number of steps of the whole training, if known.
        loss: The loss of this instance's part of the batch, or of the global batch; a number, or a
            tensor with one element.
        samples: The number of samples that this instance has trained on since the last call.
        phase: The activity, in one word: for example ``compiling`` before the first step.

    Raises:
        ArgumentError: A number of steps or samples is negative, or the phase is not a word.
    """
    if min(step or 0, total or 0, samples or 0) < 0 or not phase.isidentifier():
        raise ArgumentError(
            "PD004",
            "report_progress was given values that do not describe progress",
            value=f"step={step}, total={total}, samples={samples}, phase={phase!r}",
            accepted="numbers of 0 or more, and a phase of one word",
        )
    if phase != "training" and step is None:
        tell_progress(phase=phase)
        return
    _so_far.steps = _so_far.steps + 1 if step is None else int(step)
    mean = None if loss is None else float(loss)
    tell_progress(
        phase=phase,
        step=_so_far.steps,
        total=None if total is None else int(total),
        loss=mean,
        rate=_so_far.rate(samples),
    )
    _keep(mean, samples)


def record(*, loss: float | None = None, samples: int | None = None) -> None:
    """Records one training step of this instance in the run that poprun keeps (``--log-dir``).

    Args:
        loss: The loss of this instance's part of the batch, or of the global batch; a number, or a
            tensor with one element.
        samples: The number of samples that this instance has trained on in this step.

    Raises:
        ArgumentError: The number of samples is negative.
    """
    report_progress(loss=loss, samples=samples)


def note_step(
    *,
    loss: float | Callable[[], float] | None = None,
    samples: int | None = None,
    step: int | None = None,
    total: int | None = None,
) -> None:
    """Tells poprun of a step that an adapter has done, unless the program reports its own progress.

    Nothing is noted where a run is kept, because programs call `record` for that. A loss that is
    to be computed first, or copied from a device, is given as a function: it is called at most
    twice a second, and without a reader it is not called.
    """
    if _so_far.steps or not is_watched():
        return
    _adapters.steps = _adapters.steps + 1 if step is None else step
    if callable(loss):
        loss = _adapters.newest(loss)
    rate = _adapters.rate(samples)
    tell_progress(phase="training", step=_adapters.steps, total=total, loss=loss, rate=rate)


def note_phase(phase: str, *, between_steps: bool = False) -> None:
    """Tells poprun what an adapter does, unless the program reports its own progress.

    Args:
        phase: A word, such as ``compiling``.
        between_steps: Whether it is told after the first step, too.
    """
    if _so_far.steps == 0 and (between_steps or _adapters.steps == 0):
        tell_progress(phase=phase)


def _keep(loss: float | None, samples: int | None) -> None:
    """Notes a step in the file of this instance."""
    kept = lines()
    if kept is not None:
        kept.steps.add(
            loss=None if loss is None else float(loss),
            samples=None if samples is None else int(samples),
        )
