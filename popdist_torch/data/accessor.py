"""``AsynchronousDataAccessor``: another process prepares batches in shared memory."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import weakref
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING, Any

import torch

from popdist.metrics import note_phase
from popdist_torch.data.prefetch_worker import PrefetchTask, Ring, communicating, main
from popdist_torch.errors import DataError, Error
from popdist_torch.options.enums import SharingStrategy
from popdist_torch.options.option_methods import flag, member, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

logger = logging.getLogger("popdist.torch")

_START_METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
_SECONDS_TO_END = 5.0


def note_start(processes: int) -> None:
    """Tells poprun what takes its time until a loader's first batch."""
    note_phase(f"starting_{processes}_loader_processes" if processes > 1 else "loading")


class AsynchronousDataAccessor:
    """Iterates a data set in another process, which keeps the next batches ready.

    Batches may nest tensors in tuples, lists and dicts. What comes out is the program's own: unlike
    the original, whose batches are overwritten by the next. The process starts from a fresh server
    by default, which is safe beside a live MPI; like every such process it needs a data set that
    can be pickled and a program that is guarded by ``if __name__ == "__main__"``.

    Args:
        dataset: What is iterated once per epoch: a loader or any other iterable.
        buffer_size: Batches that are kept ready.
        miss_sleep_time_in_ms: Accepted and without effect: waiting for a batch does not poll.
        load_indefinitely: Whether the next epoch is begun before it is asked for.
        early_preload: Whether batches are made ready before the first iteration.
        sharing_strategy: How the process starts: ``ForkServer``; ``Fork``; for the other two a
            fresh interpreter.
        rebatched_size: Rows that batches are joined to; None leaves them as they are.
        keep_rest: Whether an incomplete last batch comes too, where batches are joined.

    Attributes:
        joins: Whether batches are joined.

    Raises:
        Error: The process did not start, or the data set has no batch; its first one is read here.
        DataError: An argument is out of range, or the data set cannot be pickled.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
        *,
        keep_rest: bool = False,
    ) -> None:
        del miss_sleep_time_in_ms
        if getattr(dataset, "_accessor", None) is not None:
            raise Error(
                "PD394",
                "the loader has an accessor already",
                hint="build the loader with mode=DataLoaderMode.Sync to wrap it yourself",
            )
        self._dataset = dataset
        job = PrefetchTask(
            source=dataset,
            slots=whole_number("buffer_size", buffer_size, least=1),
            rebatched_size=rebatched_size,
            keep_rest=keep_rest,
            load_indefinitely=flag("load_indefinitely", load_indefinitely),
            early_preload=flag("early_preload", early_preload),
            seed=int(torch.empty((), dtype=torch.int64).random_().item()),
            start_method=multiprocessing.get_start_method(allow_none=True),
        )
        note_start(1 + getattr(dataset, "num_workers", 0))
        self._connection, self._process = _start(job, sharing_strategy)
        self._stop = weakref.finalize(self, _end, self._connection, self._process)
        self._ring = self._first_answer(job.slots)
        note_phase("running")
        self._generation = 0
        # Whether an iteration continues the epoch that is being read; otherwise it asks for a new
        # one.
        self._going = job.early_preload
        self._indefinitely = job.load_indefinitely
        self.joins = rebatched_size is not None
        self._fresh = True
        self._resume: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        if not self._stop.alive:
            raise Error("PD394", "the accessor was terminated", hint="build a new one")
        if not self._going or not self._fresh or self._resume is not None:
            self._generation += 1
            self._send(("start", self._generation, self._resume))
            self._resume = None
        self._going, self._fresh = True, False
        return self._epoch(self._generation)

    def terminate(self) -> None:
        """Ends the process; the accessor cannot be iterated any more."""
        self._stop()

    def start_from(self, position: Mapping[str, Any]) -> None:
        """Makes the next iteration start at a position of the data set.

        Args:
            position: What the data set's ``load_state_dict`` accepts.
        """
        self._resume = position

    def _epoch(self, generation: int) -> Iterator[Any]:
        while generation == self._generation:
            kind, its_generation, *batch = self._receive()
            if kind == "end":
                if its_generation == generation:
                    self._fresh, self._going = True, self._indefinitely
                    return
                continue
            slot, nesting = batch
            if its_generation != generation:
                self._send(("free", slot))  # of an iteration that was broken off
                continue
            taken = self._ring.read(slot, nesting)
            self._send(("free", slot))
            yield taken
        raise Error(
            "PD394",
            "a newer iteration of this accessor has begun",
            hint="an accessor has one iteration at a time",
        )

    def _first_answer(self, slots: int) -> Ring:
        try:
            _, layout = self._receive()
        except Error as error:
            self._stop()
            raise Error(
                "PD394",
                f"worker thread failed to start: {error.what}",
                value=error.value,
                hint=error.hint,
            ) from None
        return Ring(layout, slots, recv_handle(self._connection))

    def _receive(self) -> Any:
        """The process's next message; the end of the process is detected as well."""
        wait([self._connection, self._process.sentinel])
        message = None
        if self._connection.poll():
            try:
                message = self._connection.recv()
            except (EOFError, ConnectionResetError):
                message = None
        if message is None:
            self._process.join()
            raise Error(
                "PD394",
                "the data process died",
                value=f"exit code {self._process.exitcode}",
                hint="its output says why; a program that starts data processes needs the guard "
                'if __name__ == "__main__", and -9 usually means that memory ran out',
            )
        if message[0] == "failed":
            raise Error("PD394", f"reading the data set failed:\n{message[1]}")
        return message

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except OSError:
            logger.debug("the data process is gone; the next batch will say why")


def _start(job: PrefetchTask, strategy: SharingStrategy) -> tuple[Connection, BaseProcess]:
    method = _START_METHODS[member("sharing_strategy", strategy, SharingStrategy)]
    if method == "fork" and communicating():
        logger.warning(
            "a data process is forked from a process whose host communication is live, which not "
            "every network survives; SharingStrategy.ForkServer is safe"
        )
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        # Imported once in the server, so that every process after the first starts at once.
        context.set_forkserver_preload(["torch", "popdist_torch.data.prefetch_worker"])
    try:
        pickled = pickle.dumps(job)
    except Exception as error:
        raise DataError(
            "PD394",
            "the data set cannot be sent to a data process",
            value=str(error),
            hint="move its class and its functions to the top level of a module, or use "
            "mode=DataLoaderMode.Sync with num_workers=0",
        ) from error
    ours, theirs = context.Pipe()
    arguments = (theirs, pickled, ours if method == "fork" else None)
    # Every context has the class; only the type of their base does not say so.
    make: Callable[..., BaseProcess] = context.Process  # type: ignore[attr-defined]
    process = make(target=main, args=arguments, name="popdist data")
    process.start()
    theirs.close()
    return ours, process


def _end(connection: Connection, process: BaseProcess) -> None:
    # Said, too: processes forked since then hold copies of this end of the pipe.
    with suppress(OSError):
        connection.send(("stop",))
    connection.close()
    process.join(_SECONDS_TO_END)
    if process.is_alive():
        process.kill()
        process.join()
