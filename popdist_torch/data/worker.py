"""The process behind an accessor: reads batches into the ring for as long as there are free slots.

It waits on its pipe only: messages tell it which slots are free and when to start over, and the
pipe's end tells it that the program is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections import deque
from dataclasses import dataclass
from multiprocessing.reduction import send_handle
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from popdist_torch.data.rebatch import rebatched
from popdist_torch.data.ring import Ring, fields
from popdist_torch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection


@dataclass(frozen=True)
class Job:
    """What a data process does.

    Attributes:
        source: What is iterated, once per epoch.
        slots: Batches that are kept ready.
        rebatched_size: Rows to join batches to; None leaves batches as they are.
        keep_rest: Whether an incomplete last batch counts, where batches are joined.
        load_indefinitely: Whether the next epoch begins when one ends, before it is asked for.
        early_preload: Whether reading goes on before the first iteration.
        seed: Of torch's generator in the process.
    """

    source: Any
    slots: int
    rebatched_size: int | None
    keep_rest: bool
    load_indefinitely: bool
    early_preload: bool
    seed: int


class _StartOverError(Exception):
    """The program began a new iteration before the end of one."""


def main(connection: Connection, pickled: bytes, inherited: Connection | None) -> None:
    """Runs until the program says so, or is gone and with it its end of the pipe.

    Args:
        connection: The pipe.
        pickled: A `Job`.
        inherited: The program's end of the pipe, where forking copied it.
    """
    if inherited is not None:
        inherited.close()
    # An interrupt from the terminal reaches the program too, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job = pickle.loads(pickled)  # noqa: S301 - written by the process that started this one
        torch.set_num_threads(1)
        torch.manual_seed(job.seed)
        _Reader(connection, job).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception:  # noqa: BLE001 - whatever the data set raises is told to the program
        _tell(connection, ("failed", traceback.format_exc()))


def _tell(connection: Connection, message: tuple[Any, ...]) -> None:
    try:
        connection.send(message)
    except OSError:
        return


class _Reader:
    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection = connection
        self._job = job
        self._free: deque[int] = deque()
        self._generation = 0
        self._position: Mapping[str, Any] | None = None

    def run(self) -> None:
        batches = self._epoch()
        first = next(batches, None)
        if first is None:
            raise DataError(
                "PD302", "the data set gives no batch", hint="check its length and the batch size"
            )
        tensors = [leaf for leaf in pytree.tree_leaves(first[0]) if _is_tensor(leaf)]
        if not tensors:
            raise DataError("PD302", "batches of an accessor hold tensors", value=first[0])
        ring = Ring(fields(tensors, self._job.rebatched_size), self._job.slots)
        self._free.extend(range(self._job.slots))
        self._connection.send(("ready", ring.layout))
        send_handle(self._connection, ring.file, os.getppid())
        begun = True
        if not self._job.early_preload:
            begun = self._wait_for_start()
        batches = _chained(first, batches) if begun else self._epoch()
        while True:
            try:
                for pieces in batches:
                    slot = self._slot()
                    nesting = ring.write(slot, pieces)
                    self._connection.send(("batch", self._generation, slot, nesting))
                self._connection.send(("end", self._generation))
                if not self._job.load_indefinitely:
                    self._wait_for_start()
            except _StartOverError:
                pass
            batches = self._epoch()

    def _epoch(self) -> Iterator[list[Any]]:
        source, job = self._job.source, self._job
        if self._position is not None:
            source.load_state_dict(self._position)
            self._position = None
        if job.rebatched_size is None:
            return ([batch] for batch in source)
        return rebatched(source, job.rebatched_size, keep_rest=job.keep_rest)

    def _slot(self) -> int:
        while self._connection.poll() or not self._free:
            self._take_message()
        return self._free.popleft()

    def _wait_for_start(self) -> bool:
        """Waits for the program; returns whether it wants the epoch that has begun already."""
        try:
            while True:
                self._take_message()
        except _StartOverError:
            return self._position is None

    def _take_message(self) -> None:
        kind, *values = self._connection.recv()
        if kind == "stop":
            raise EOFError
        if kind == "free":
            self._free.append(values[0])
            return
        self._generation, self._position = values
        raise _StartOverError


def _chained(first: list[Any], rest: Iterator[list[Any]]) -> Iterator[list[Any]]:
    yield first
    yield from rest


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)
