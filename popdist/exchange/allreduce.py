"""Sums the arenas of a plan over all instances, in place, over the real Horovod.

Slices are submitted one by one and asynchronously. Horovod would copy slices into its fusion buffer
and back, which costs more than it saves inside one machine (measured: 100 MB of 4 MiB slices over 2
ranks take 80 ms with Horovod's default fusion and 31 ms without). On one machine, poprun therefore
sets ``HOROVOD_LARGEST_FUSED`` (see `popdist.poprun.plan.mpirun`). Results do not depend on it.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist import metrics
from popdist.backend import takes_arrays
from popdist.errors import BackendError
from popdist.program_status import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from popdist.exchange.buckets import Plan

_WIRE_TYPES = {"bfloat16": "float32"}
"""Element types that Horovod rejects, with the types that are sent; sums are cast back."""


def on_array(array: Any, horovod: Any, collective: Callable[[Any], Any]) -> Any:
    """Runs a collective of a binding on a numpy array.

    Args:
        array: A contiguous array.
        horovod: The binding: PyTorch's, or `popdist.exchange.mpi`.
        collective: Gets what the binding takes, and returns such a thing.

    Returns:
        The result, as an array.
    """
    if takes_arrays(horovod):
        return collective(array)
    import torch

    return collective(torch.from_numpy(array)).numpy()


def gather(horovod: Any) -> Callable[[bytes], list[bytes]]:
    """The transport for `popdist.agreement`.

    Args:
        horovod: The module ``horovod.torch`` or `popdist.exchange.mpi`, initialised.

    Returns:
        A function that returns the bytes of all instances, of equal length. It raises
        `BackendError` (PD021) where another instance has ended.
    """

    def gathered(content: bytes) -> list[bytes]:
        row = np.frombuffer(bytearray(content), np.uint8)[None]
        with _explained("facts that instances compare"):
            rows = on_array(
                row, horovod, lambda one: horovod.allgather(one, name="popdist.agreement")
            )
        return [row.tobytes() for row in rows]

    return gathered


class Exchange:
    """An in-place sum over all instances, repeated many times.

    All instances must make the same calls with the same plan. One round is `begin`, any number of
    `ready`, `finish`; with `send` before it, several exchanges wait together.

    Args:
        plan: The layout.
        arenas: Its flat buffers: tensors on the host or on a device, or arrays.
        horovod: The module ``horovod.torch`` for tensors, `popdist.exchange.mpi` for arrays,
            initialised (see `popdist.backend.connect`).
        name: Prefix of the slices' names; equal on all instances, and unequal for exchanges whose
            rounds overlap in time.
        average: Whether sums are divided by the number of instances.
        fill: Called with a slice's items before the slice is sent, to copy the items into the
            arenas; an item in several slices is passed for each. None where items are computed in
            the arenas.

    Raises:
        BackendError: The buffers do not match the plan.
    """

    def __init__(
        self,
        plan: Plan,
        arenas: Sequence[Any],
        horovod: Any,
        *,
        name: str = "popdist",
        average: bool = False,
        fill: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        _check(plan, arenas)
        self._plan = plan
        self._fill = fill
        self._horovod = horovod
        self._op = horovod.Average if average else horovod.Sum
        self._names = [f"{name}.{i}" for i in range(len(plan.slices))]
        # Lent arenas have no memory between rounds, but their send buffers may.
        wires = [_wire(arena, of.elements) for arena, of in zip(arenas, plan.arenas, strict=True)]
        self._complex = ["complex" in arena.dtype for arena in plan.arenas]
        self._direct = [wires[s.arena] is None for s in plan.slices]
        self._local = [arenas[s.arena][s.start : s.stop] for s in plan.slices]
        self._wire = [
            here if (wire := wires[s.arena]) is None else wire[s.start : s.stop]
            for s, here in zip(plan.slices, self._local, strict=True)
        ]
        self._attached = {
            index: self._local[index]
            for index, part in enumerate(plan.slices)
            if plan.arenas[part.arena].zero_copy
        }
        self._slices_of: list[list[int]] = [[] for _ in plan.items]
        for index, part in enumerate(plan.slices):
            for item in part.items:
                self._slices_of[item].append(index)
        self._missing: list[int] = []
        self._handles: dict[int, int] = {}
        self._complete = bytearray(len(plan.items))
        self._kept = metrics.lines()

    def begin(self) -> None:
        """Starts a round: no item is complete."""
        self._missing = [len(part.items) for part in self._plan.slices]
        self._complete = bytearray(len(self._plan.items))

    def attach(self, item: int, memory: torch.Tensor) -> None:
        """Sets the memory of an item in a zero-copy arena, until the end of this round.

        Args:
            item: Index of the item.
            memory: A contiguous 1-D tensor of the item's size, type and device.

        Raises:
            BackendError: The tensor has another size, type or device, or is not contiguous.
        """
        arena = self._plan.arenas[self._plan.slots[item].arena]
        expected = (arena.dtype, arena.elements, True)
        seen = (str(memory.dtype)[6:], memory.numel(), memory.dim() == 1 and memory.is_contiguous())
        if not arena.zero_copy or seen != expected:
            raise BackendError(
                "PD020", "an item is attached to other memory than planned", value=seen
            )
        for index in self._slices_of[item]:
            part = self._plan.slices[index]
            self._local[index] = memory[part.start : part.stop]
            if self._direct[index]:
                self._wire[index] = self._local[index]

    def ready(self, item: int) -> None:
        """Marks an item as complete in its arena; slices whose items are all complete are sent.

        Args:
            item: Index of the item.

        Raises:
            BackendError: The item was complete already, so its slices may be sent already.
        """
        if self._complete[item]:
            raise BackendError(
                "PD022",
                "a gradient changed after it was handed to the exchange",
                value=self._plan.items[item].name,
                hint="a backward pass reached this parameter twice; activation checkpointing needs "
                "use_reentrant=False",
            )
        self._complete[item] = 1
        for index in self._slices_of[item]:
            self._missing[index] -= 1
            if self._missing[index] == 0:
                self._submit(index)

    def send(self) -> None:
        """Sends the remaining slices, complete or not.

        Raises:
            BackendError: Another instance ended or failed meanwhile.
        """
        for index in range(len(self._plan.slices)):
            if index not in self._handles:
                self._submit(index)

    def finish(self) -> None:
        """Sends the remaining slices, and waits until all arenas hold their sums.

        Raises:
            BackendError: Another instance ended or failed meanwhile.
        """
        began = time.perf_counter()
        self.send()
        handles, self._handles = self._handles, {}
        for index, handle in handles.items():
            with _explained(self._names[index]), waiting(f"the exchange of {self._names[index]}"):
                self._horovod.synchronize(handle)
            if not self._direct[index]:
                self._local[index][:] = self._wire[index]
        for index, nothing in self._attached.items():
            self._local[index] = nothing
            if self._direct[index]:
                self._wire[index] = nothing
        if self._kept is not None:
            self._kept.exchanges.add(waited=time.perf_counter() - began)

    def _submit(self, index: int) -> None:
        if self._fill is not None:
            self._fill(self._plan.slices[index].items)
        wire, local = self._wire[index], self._local[index]
        if index in self._attached and not local.numel():
            raise BackendError("PD020", "a slice was to leave before its memory was attached")
        if not self._direct[index]:
            wire[:] = local
        if self._complex[self._plan.slices[index].arena]:
            import torch

            wire = torch.view_as_real(wire)  # Horovod has no complex type; the parts are summed
        with _explained(self._names[index]):
            self._handles[index] = self._horovod.grouped_allreduce_async_(
                [wire], op=self._op, name=self._names[index]
            )


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turns Horovod's shutdown error, at submission or later, into popdist's error."""
    try:
        yield
    except RuntimeError as error:  # HorovodInternalError is one
        raise BackendError(
            "PD021",
            f"the exchange of {name} was aborted, because another instance ended or failed",
            value=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="read that instance's output; if it ended normally, it took fewer steps "
            "than this one",
        ) from error


def _wire(arena: Any, elements: int) -> Any | None:
    """The buffer that is sent; None where Horovod can use the arena itself."""
    name = _name(arena)
    wanted = _WIRE_TYPES.get(name, name)
    if isinstance(arena, np.ndarray):
        return None if name == wanted else np.empty(elements, wanted)
    import torch

    if arena.device.type == "cpu" and name == wanted:
        return None
    is_pinned = arena.device.type == "cuda"
    return torch.empty(elements, dtype=getattr(torch, wanted), pin_memory=is_pinned)


def _name(arena: Any) -> str:
    """The name of an arena's element type, alike for tensors and arrays."""
    return str(arena.dtype).removeprefix("torch.")


def _is_contiguous(arena: Any) -> bool:
    if isinstance(arena, np.ndarray):
        return arena.flags.c_contiguous
    return bool(arena.is_contiguous())


def _check(plan: Plan, arenas: Sequence[Any]) -> None:
    planned = [(a.dtype, (0 if a.zero_copy else a.elements,)) for a in plan.arenas]
    given = [(_name(arena), tuple(arena.shape)) for arena in arenas]
    if planned != given or not all(map(_is_contiguous, arenas)):
        raise BackendError(
            "PD020",
            "an exchange plan does not fit the buffers it was given",
            value=given,
            accepted=f"contiguous buffers {planned}",
        )
