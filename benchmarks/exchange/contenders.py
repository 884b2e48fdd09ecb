"""The contenders, on a rank: each sums the same buffers over all ranks, in place."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from benchmarks.exchange.cases import ELEMENT_BYTES, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

_SLICE_ELEMENTS = 4 * MIB // ELEMENT_BYTES


class Buffers:
    """One rank's gradients, back to back in one piece of newly mapped memory.

    Args:
        values: What they hold at first.
        tensors: How many there are.
    """

    def __init__(self, values: np.ndarray[Any, Any], tensors: int) -> None:
        # An allocator may hand out pages that it had before; a mapping is new.
        memory = mmap.mmap(-1, values.nbytes)
        self.flat = np.frombuffer(memory, dtype=values.dtype)
        np.copyto(self.flat, values)
        self.parts = np.split(self.flat, tensors) if tensors > 1 else [self.flat]
        self.tensor = torch.from_numpy(self.flat)
        self.tensors = list(self.tensor.chunk(tensors))


class Contender(Protocol):
    """One way to sum buffers over all ranks."""

    name: str

    def prepare(self, buffers: Buffers) -> Callable[[], None]:
        """Does what is done once for a set of buffers.

        Args:
            buffers: They stay where they are.

        Returns:
            Does one exchange.
        """
        ...


class Memcpy:
    """No exchange: every rank copies its buffers once, all ranks at a time.

    The floor: each rank has to read what another one wrote. In fresh memory the copy that wrote the
    buffers is the one that counts, and there is nothing left to do.
    """

    name = "memcpy"

    def __init__(self, *, fresh: bool) -> None:
        self._fresh = fresh

    def prepare(self, buffers: Buffers) -> Callable[[], None]:
        """See `Contender`."""
        if self._fresh:
            return lambda: None
        target = Buffers(buffers.flat, len(buffers.parts))
        pairs = list(zip(target.parts, buffers.parts, strict=True))

        def copy() -> None:
            for to, source in pairs:
                np.copyto(to, source)

        return copy


class Mpi:
    """MPI_Allreduce in place, once for each tensor or for each slice of it.

    Args:
        mpi: The module ``mpi4py.MPI``.
        sliced: Whether to divide tensors.
    """

    def __init__(self, mpi: Any, *, sliced: bool = False) -> None:
        self.name = "MPI sliced" if sliced else "MPI"
        self._mpi = mpi
        self._sliced = sliced

    def prepare(self, buffers: Buffers) -> Callable[[], None]:
        """See `Contender`."""
        mpi, world = self._mpi, self._mpi.COMM_WORLD
        pieces = [[piece, mpi.FLOAT] for part in buffers.parts for piece in self._pieces(part)]

        def reduce() -> None:
            for piece in pieces:
                world.Allreduce(mpi.IN_PLACE, piece, op=mpi.SUM)

        return reduce

    def _pieces(self, part: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        if not self._sliced:
            return [part]
        starts = range(0, len(part), _SLICE_ELEMENTS)
        return [part[start : start + _SLICE_ELEMENTS] for start in starts]


class Gloo:
    """torch.distributed over gloo.

    Args:
        store: A file that does not exist, through which the ranks of this job find each other.
        rank: This rank.
        ranks: How many there are.
    """

    name = "torch gloo"

    def __init__(self, store: str, rank: int, ranks: int) -> None:
        from torch import distributed

        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
        )
        self._distributed = distributed

    def prepare(self, buffers: Buffers) -> Callable[[], None]:
        """See `Contender`."""
        all_reduce = self._distributed.all_reduce

        def reduce() -> None:
            works = [all_reduce(tensor, async_op=True) for tensor in buffers.tensors]
            for work in works:
                work.wait()

        return reduce


class HorovodDefaults:
    """Real Horovod as it comes: one asynchronous allreduce for each tensor, then wait for all."""

    name = "Horovod defaults"

    def __init__(self) -> None:
        from horovod import torch as horovod

        horovod.init()
        self._horovod = horovod

    def prepare(self, buffers: Buffers) -> Callable[[], None]:
        """See `Contender`."""
        horovod = self._horovod
        size = buffers.flat.nbytes
        named = [(f"benchmark.{size}.{i}", t) for i, t in enumerate(buffers.tensors)]

        def reduce() -> None:
            handles = [
                horovod.allreduce_async_(tensor, name=name, op=horovod.Sum)
                for name, tensor in named
            ]
            for handle in handles:
                horovod.synchronize(handle)

        return reduce


class Popdist:
    """`popdist.exchange`, which the adapters use, over the Horovod that popdist starts."""

    name = "popdist"

    def __init__(self) -> None:
        from popdist import backend, exchange

        self._exchange = exchange
        self._horovod = backend.connect("torch")
        if self._horovod is None:
            raise RuntimeError("popdist sees a job of one instance")

    def prepare(self, buffers: Buffers) -> Callable[[], None]:
        """See `Contender`."""
        items = [
            self._exchange.Item(f"benchmark.{i}", len(part), "float32", ELEMENT_BYTES)
            for i, part in enumerate(buffers.parts)
        ]
        name = f"benchmark.{buffers.flat.nbytes}.{len(items)}"
        plan = self._exchange.plan(items)
        exchange = self._exchange.Exchange(plan, [buffers.tensor], self._horovod, name=name)

        def reduce() -> None:
            exchange.begin()
            for item in range(len(items)):
                exchange.ready(item)
            exchange.finish()

        return reduce
