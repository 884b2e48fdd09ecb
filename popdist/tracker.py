"""Metrics of a training for trackers: means over all instances, which instance 0 alone writes."""

from __future__ import annotations

import csv
import io
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from popdist import backend
from popdist.errors import ArgumentError, BackendError
from popdist.program_status import waiting
from popdist.whole_files import target, write_whole

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self


class Writer(Protocol):
    """A destination of means, in the form of a run of Weights & Biases."""

    def log(self, values: dict[str, Any], /, *, step: int) -> object:
        """Takes the means of one step."""

    def finish(self) -> object:
        """Ends the writer."""


def track(
    folder: str | os.PathLike[str],
    *,
    to: str | Callable[[], Writer] | Sequence[str | Callable[[], Writer]] = "csv",
) -> Tracker:
    """Begins to keep metrics of a training; all instances of the job must call it.

    Args:
        folder: The folder for the files; made where it does not exist. Rows are added to files that
            exist.
        to: ``"csv"`` (``metrics.csv`` in the folder), ``"tensorboard"`` (event files in the
            folder), a function without arguments that returns a writer, such as
            ``lambda: wandb.init(project="digits")``, or several of them. Functions are called on
            instance 0 alone.

    Returns:
        The tracker, to be used as a context manager, or until `Tracker.finish`.

    Raises:
        ArgumentError: A name is unknown, or its package is not installed.
        BackendError: The job was started by another launcher, and Horovod does not run in it yet.
    """
    wanted = [to] if isinstance(to, str) or callable(to) else list(to)
    unknown = [one for one in wanted if not callable(one) and one not in _WRITERS]
    if unknown:
        raise ArgumentError(
            "PD004",
            "track was given a writer that it does not know",
            value=unknown[0],
            accepted=f"{', '.join(_WRITERS)}, or a function that returns a writer",
        )
    horovod = _horovod()
    if horovod is not None and horovod.rank() > 0:
        return Tracker([], horovod)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    return Tracker([one() if callable(one) else _WRITERS[one](place) for one in wanted], horovod)


class Tracker:
    """Averages metrics over the instances, and gives the means to the writers of instance 0.

    Args:
        writers: This instance's writers.
        horovod: What connects the instances; None in a job of one.
    """

    def __init__(self, writers: Sequence[Writer], horovod: Any | None) -> None:
        self._writers = writers
        self._horovod = horovod
        self._step = 0

    def log(
        self, values: Mapping[str, float], *, step: int | None = None, samples: float = 1.0
    ) -> dict[str, float]:
        """Keeps the metrics of one step; all instances must call it equally often.

        Args:
            values: This instance's metrics: numbers, or tensors with one element. One that some
                instances lack is averaged over the others.
            step: The step; None for one more than at the last call, from 1.
            samples: The weight of this instance's values, such as its number of samples.

        Returns:
            The means, ``sum(samples * value) / sum(samples)``; the same on all instances.
        """
        self._step = self._step + 1 if step is None else int(step)
        mine = {name: float(value) for name, value in values.items()}
        means = _means(self._all((mine, float(samples))))
        for writer in self._writers:
            writer.log(dict(means), step=self._step)
        return means

    def finish(self) -> None:
        """Ends the writers."""
        for writer in self._writers:
            writer.finish()
        self._writers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish()

    def _all(self, mine: tuple[dict[str, float], float]) -> list[tuple[dict[str, float], float]]:
        if self._horovod is None:
            return [mine]
        with waiting("popdist.track"):
            return list(self._horovod.allgather_object(mine, name="popdist.track"))


def _means(parts: Sequence[tuple[dict[str, float], float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for values, weight in parts:
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + weight * value
            weights[name] = weights.get(name, 0.0) + weight
    return {name: whole / weights[name] for name, whole in sums.items() if weights[name]}


def _horovod() -> Any | None:
    """The Horovod that connects the instances; None where this process is alone."""
    running = backend.started()
    if running is None:
        here = backend.launch()
        if here.alone:
            return None
        if here.by != "poprun":
            raise BackendError(
                "PD012",
                "track averages over instances, which nothing connects yet",
                value=f"started by {here.by}",
                hint="call hvd.init() before popdist.track()",
            )
        backend.init()
        running = backend.current().horovod
    return running if running is not None and running.size() > 1 else None


class _Csv:
    """A row for each step; a new metric becomes a column, empty in the rows before."""

    def __init__(self, folder: Path) -> None:
        self._path = Path(target(str(folder / "metrics.csv")))
        self._columns: list[str] = []
        if self._path.exists() and not self._path.is_symlink():  # a link of another user's
            with self._path.open(newline="", encoding="utf-8") as file:
                self._columns = next(csv.reader(file), [])

    def log(self, values: dict[str, Any], /, *, step: int) -> None:
        row = {"step": step, "time": round(time.time(), 3), **values}
        new = [name for name in row if name not in self._columns]
        if new:
            self._add(new)
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def finish(self) -> None:
        """Each row is written already."""

    def _add(self, new: Sequence[str]) -> None:
        rows: list[dict[str, Any]] = []
        if self._columns:
            with self._path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self._columns += new
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        write_whole(str(self._path), text.getvalue())


class _TensorBoard:
    """Scalars, by the writer of the package tensorboard, which needs no framework."""

    def __init__(self, folder: Path) -> None:
        try:
            summary = import_module("tensorboard.summary")
        except ImportError as error:
            raise ArgumentError(
                "PD004",
                "track cannot write for TensorBoard",
                value=str(error),
                hint="pip install tensorboard",
            ) from error
        self._writer = summary.Writer(str(folder))

    def log(self, values: dict[str, Any], /, *, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


_WRITERS: dict[str, Callable[[Path], Writer]] = {"csv": _Csv, "tensorboard": _TensorBoard}
