"""The process behind an accessor, which reads batches into a ring of slots in shared memory.

The process waits on its pipe only. Messages tell which slots are free and when to start over; the
end of the pipe tells that the program has ended.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from collections import deque
from dataclasses import dataclass
from math import prod
from multiprocessing.reduction import send_handle
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from popdist import backend
from popdist_torch.arguments import served
from popdist_torch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection


# Joins small batches to full ones, without copying.


def rebatched(batches: Iterable[Any], size: int, *, keep_rest: bool) -> Iterator[list[Any]]:
    """Regroups rows of equally nested batches: yields parts, in order, of ``size`` rows together.

    With ``keep_rest``, the last group may have fewer rows.
    """
    parts: list[Any] = []
    missing = size
    for whole in batches:
        batch, rows = whole, _rows(whole)
        while rows >= missing:
            parts.append(_cut(batch, 0, missing))
            yield parts
            batch, rows = _cut(batch, missing, rows), rows - missing
            parts, missing = [], size
        if rows:
            parts.append(batch)
            missing -= rows
    if parts and keep_rest:
        yield parts


def _rows(batch: Any) -> int:
    leaves = pytree.tree_leaves(served(batch))
    counts = {len(x) if isinstance(x, torch.Tensor) and x.dim() else None for x in leaves}
    if len(counts) != 1 or None in counts:
        raise DataError(
            "PD395",
            "batches can be joined only where they are tensors with equally many rows",
            value=[tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in leaves],
            hint="return tensors from the data set, or use DataLoaderMode.Async",
        )
    return int(counts.pop() or 0)


def _cut(batch: Any, start: int, stop: int) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[start:stop], batch)


def _of_type(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in another type, if all of its values are those of that type; else as it is.

    A program that pads some batches may make whole numbers of them floating, as zeros of torch are.
    """
    if part.dtype == dtype:
        return part
    other = part.to(dtype)
    return other if torch.equal(other.to(part.dtype), part) else part


# The slots of shared memory that hold the batches.


_ALIGNMENT = 64


@dataclass(frozen=True)
class Place:
    """Stands for a tensor in the nesting of a batch while the tensor lies in a slot.

    Attributes:
        index: Which of the batch's tensors it is.
        rows: Its first dimension; None for a tensor without dimensions.
    """

    index: int
    rows: int | None


@dataclass(frozen=True)
class Field:
    """Where one of a batch's tensors lies in every slot.

    Attributes:
        dtype: Its element type.
        shape: Its largest shape.
        start: Its first byte in the slot.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def fields(tensors: Sequence[torch.Tensor], rows: int | None) -> list[Field]:
    """The layout of a slot, from the tensors of the first batch; ``rows`` overrides their rows."""
    made: list[Field] = []
    start = 0
    for tensor in tensors:
        shape = tuple(tensor.shape)
        if rows is not None:
            shape = (rows, *shape[1:])
        made.append(Field(tensor.dtype, shape, start))
        start += -(-prod(shape) * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    return made


class Ring:
    """A number of slots, each for one batch.

    The memory is anonymous, so it needs no place in ``/dev/shm`` and goes with its last user.

    Args:
        layout: The fields of a slot.
        slots: Number of slots.
        file: Descriptor of memory that another process made; by default new memory.

    Attributes:
        layout: The fields of a slot.
        slots: Number of slots.
        file: Descriptor of the memory.

    Raises:
        OSError: There is not so much memory.
    """

    def __init__(self, layout: list[Field], slots: int, file: int | None = None) -> None:
        self.layout, self.slots = layout, slots
        last = layout[-1]
        size = last.start + max(prod(last.shape) * last.dtype.itemsize, 1)
        self._slot_bytes = -(-size // _ALIGNMENT) * _ALIGNMENT
        self.file = _anonymous(slots * self._slot_bytes) if file is None else file
        self._memory = mmap.mmap(self.file, slots * self._slot_bytes)

    def write(self, slot: int, pieces: Sequence[Any]) -> Any:
        """Copies the pieces of a batch into a slot; returns the nesting with places for tensors.

        Raises:
            DataError: The batch does not fit; batches must be shaped like the first one.
        """
        flat = [pytree.tree_flatten(served(piece)) for piece in pieces]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        described: list[Any] = []
        index = 0
        for column in columns:
            if isinstance(column[0], torch.Tensor):
                described.append(self._put(slot, index, column))
                index += 1
            else:
                described.append(column[0])
        return pytree.tree_unflatten(described, flat[0][1])

    def read(self, slot: int, nesting: Any) -> Any:
        """Copies a batch out of a slot into new memory; `write` returned the nesting."""

        def tensor(place: Place) -> torch.Tensor:
            view = self._view(slot, place.index)
            return (view if place.rows is None else view[: place.rows]).clone()

        return pytree.tree_map_only(Place, tensor, nesting)

    def _put(self, slot: int, index: int, parts: Sequence[torch.Tensor]) -> Place:
        if index >= len(self.layout):
            raise DataError("PD395", "a batch has more tensors than the first one")
        field = self.layout[index]
        parts = [_of_type(part, field.dtype) for part in parts]
        rows = sum(len(part) for part in parts) if field.shape else None
        fits = all(p.dtype == field.dtype and p.shape[1:] == field.shape[1:] for p in parts)
        if not fits or (rows is not None and rows > field.shape[0]):
            raise DataError(
                "PD395",
                "the batches of an accessor must have the shapes and types of the first one, or "
                "fewer rows",
                value=[(p.dtype, tuple(p.shape)) for p in parts],
                accepted=f"{field.dtype} {field.shape}",
                hint="pad samples to one shape, or use DataLoaderMode.Sync",
            )
        view = self._view(slot, index)
        if rows is None:
            view.copy_(parts[0])
        else:
            torch.cat(list(parts), out=view[:rows])
        return Place(index, rows)

    def _view(self, slot: int, index: int) -> torch.Tensor:
        field = self.layout[index]
        count = prod(field.shape)
        if not count:
            return torch.empty(field.shape, dtype=field.dtype)
        return torch.frombuffer(
            self._memory,
            dtype=field.dtype,
            count=count,
            offset=slot * self._slot_bytes + field.start,
        ).view(field.shape)


def _anonymous(size: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("popdist batches")
    else:
        with tempfile.TemporaryFile() as kept:
            file = os.dup(kept.fileno())
    # Now, as an error: without it the first write beyond what is there would kill the process.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
    return file


@dataclass(frozen=True)
class PrefetchTask:
    """What a data process does.

    Attributes:
        source: What is iterated, once per epoch.
        slots: Batches that are kept ready.
        rebatched_size: Rows to join batches to; None leaves batches as they are.
        keep_rest: Whether an incomplete last batch counts, where batches are joined.
        load_indefinitely: Whether the next epoch begins when one ends, before it is asked for.
        early_preload: Whether reading continues before the first iteration.
        seed: Of torch's generator in the process.
        start_method: How the process starts the workers of a loader: the method that the program
            has chosen, or None for the platform's.
    """

    source: Any
    slots: int
    rebatched_size: int | None
    keep_rest: bool
    load_indefinitely: bool
    early_preload: bool
    seed: int
    start_method: str | None


class _StartOverError(Exception):
    """The program began a new iteration before the end of one."""


def main(connection: Connection, pickled: bytes, inherited: Connection | None) -> None:
    """Runs a pickled `PrefetchTask` until the program ends it, or closes its end of the pipe.

    ``inherited`` is the program's end of the pipe, where forking copied it.
    """
    if inherited is not None:
        inherited.close()
    # An interrupt from the terminal reaches the program too, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job = pickle.loads(pickled)  # noqa: S301 - written by the process that started this one
        # A process of a fork server would start others by servers too: slow, and with workers that
        # live on when the process is killed. It has no MPI, which forking could harm.
        multiprocessing.set_start_method(job.start_method, force=True)
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
    def __init__(self, connection: Connection, job: PrefetchTask) -> None:
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
        tensors = [leaf for leaf in pytree.tree_leaves(served(first[0])) if _is_tensor(leaf)]
        if not tensors:
            raise DataError("PD395", "batches of an accessor hold tensors", value=first[0])
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


# The start method of data processes while MPI is in use.


def start_method() -> str | None:
    """The start method of torch's data workers where the program has not chosen one.

    Forking is fast, needs neither picklable data sets nor a ``__main__`` guard, and works while MPI
    uses shared memory. Over a network that registers memory with its card, a fork of a process with
    live MPI can corrupt the original's transfers. So where host communication is live and spans
    hosts the result is ``"forkserver"``; else it is None, for the platform's default.
    """
    if multiprocessing.get_start_method(allow_none=True) not in (None, "fork"):
        return None
    return "forkserver" if _spans_hosts() else None


def communicating() -> bool:
    """Whether popdist or the program has initialised Horovod in this process."""
    return backend.started() is not None


def _spans_hosts() -> bool:
    horovod = backend.started()
    return horovod is not None and int(horovod.local_size()) < int(horovod.size())
