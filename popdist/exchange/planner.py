"""How gradients lie in flat buffers, and in which slices those travel: sizes in, plan out.

One buffer (an arena) per element type holds all gradients of that type back to back, so that
exchanging them needs no copy. An arena travels in slices of a few MiB, whatever the tensors'
borders are: one large MPI_Allreduce costs several times as much as the same bytes in pieces,
because Open MPI allocates a temporary buffer of the whole size for it. A slice can leave as soon as
the last item that lies in it is complete; with items in the order in which the backward pass
completes them, the first slices travel while later gradients are still being computed.

The plan depends on nothing but its arguments, so all instances of a job make the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_SLICE_BYTES = 4 << 20
"""Large enough that latency does not count, small enough to stay clear of the cliff (see above)."""


@dataclass(frozen=True)
class Item:
    """One tensor that takes part.

    Attributes:
        name: Its name, for messages.
        elements: Its number of elements.
        dtype: Its element type, by name.
        itemsize: Bytes per element.
    """

    name: str
    elements: int
    dtype: str
    itemsize: int


@dataclass(frozen=True)
class Arena:
    """One flat buffer.

    Attributes:
        dtype: Its element type, by name.
        elements: Its number of elements.
    """

    dtype: str
    elements: int


@dataclass(frozen=True)
class Slot:
    """Where an item lies.

    Attributes:
        arena: Index of its arena.
        start: Its first element there.
        stop: One past its last element.
    """

    arena: int
    start: int
    stop: int


@dataclass(frozen=True)
class Slice:
    """A part of an arena that travels on its own.

    Attributes:
        arena: Index of the arena.
        start: Its first element there.
        stop: One past its last element.
        items: Indices of the items that lie in it, wholly or in part; all must be complete before
            it may leave.
    """

    arena: int
    start: int
    stop: int
    items: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The layout of an exchange.

    Attributes:
        items: What takes part, in the order given.
        arenas: The flat buffers, in the order in which their types first occur.
        slots: Where each item lies.
        slices: What travels on its own; the slices of an arena tile it.
    """

    items: tuple[Item, ...]
    arenas: tuple[Arena, ...]
    slots: tuple[Slot, ...]
    slices: tuple[Slice, ...]


def plan(items: Sequence[Item], *, slice_bytes: int = DEFAULT_SLICE_BYTES) -> Plan:
    """Lays out an exchange.

    Args:
        items: What takes part, in the order in which it will be complete.
        slice_bytes: Size of a slice; the last one of an arena may be smaller.

    Returns:
        The plan.

    Raises:
        ValueError: A slice cannot hold one element.
    """
    arenas: list[Arena] = []
    slots: list[Slot] = [Slot(0, 0, 0)] * len(items)
    slices: list[Slice] = []
    for index, dtype in enumerate(dict.fromkeys(item.dtype for item in items)):
        members = [i for i, item in enumerate(items) if item.dtype == dtype]
        stops = list(accumulate(items[i].elements for i in members))
        for i, stop in zip(members, stops, strict=True):
            slots[i] = Slot(index, stop - items[i].elements, stop)
        arenas.append(Arena(dtype, stops[-1]))
        step = slice_bytes // items[members[0]].itemsize
        if step < 1:
            raise ValueError(f"a slice of {slice_bytes} bytes cannot hold one {dtype}")
        slices += _cut(index, stops[-1], step, [(i, slots[i]) for i in members])
    return Plan(tuple(items), tuple(arenas), tuple(slots), tuple(slices))


def _cut(arena: int, elements: int, step: int, members: list[tuple[int, Slot]]) -> list[Slice]:
    slices = []
    first = 0
    for start in range(0, elements, step):
        stop = min(start + step, elements)
        # Both members and slices ascend, so a member that ended before this slice is done with.
        while members[first][1].stop <= start:
            first += 1
        inside = []
        for i, slot in members[first:]:
            if slot.start >= stop:
                break
            if slot.start < slot.stop:
                inside.append(i)
        slices.append(Slice(arena, start, stop, tuple(inside)))
    return slices
