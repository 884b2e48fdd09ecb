"""The layout of gradients in flat buffers, and the slices that are exchanged: sizes in, plan out.

One buffer (an arena) per element type holds all gradients of that type without gaps, so that
exchanging them needs no copy. An arena is exchanged in slices of a few MiB, independent of the
tensors' borders: one large MPI_Allreduce costs several times as much as the same bytes in pieces,
because Open MPI allocates a temporary buffer of the whole size. A slice is sent when its last item
is complete. With items in the order of the backward pass, the first slices are exchanged while
later gradients are still being computed.

A large tensor need not be copied into an arena: the tensor can be exchanged in the memory in which
it was computed. The tensor then has an arena of its own, whose memory is set in each round.

The plan depends only on its arguments, so all instances of a job make the same plan.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch


DEFAULT_SLICE_BYTES = 4 << 20
"""Large enough to hide latency, small enough to avoid the cost of large calls (see above)."""

DEFAULT_TAIL_BYTES = 512 << 10
"""The largest last slice, whose exchange cannot overlap with computing. A smaller slice would not
be faster, because latency dominates below this size."""

DEFAULT_ZERO_COPY_BYTES = 1 << 20
"""From this size on, copying a tensor takes longer than exchanging one more slice."""


@dataclass(frozen=True)
class Item:
    """One tensor that takes part.

    Attributes:
        name: The tensor's name, for messages.
        elements: The number of elements.
        dtype: The element type, by name.
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
        dtype: The element type, by name.
        elements: The number of elements.
        zero_copy: Whether the arena holds one item only, in memory that is set in each round.
    """

    dtype: str
    elements: int
    zero_copy: bool = False


@dataclass(frozen=True)
class Slot:
    """The place of an item.

    Attributes:
        arena: Index of the arena.
        start: The first element in the arena.
        stop: One past its last element.
    """

    arena: int
    start: int
    stop: int


@dataclass(frozen=True)
class Slice:
    """A part of an arena that is exchanged in one call.

    Attributes:
        arena: Index of the arena.
        start: The first element in the arena.
        stop: One past the last element.
        items: Indices of the items that overlap the slice; all must be complete before the slice
            is sent.
    """

    arena: int
    start: int
    stop: int
    items: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The layout of an exchange.

    Attributes:
        items: The tensors, in the order given.
        arenas: The flat buffers: one per type, in the order of first occurrence, then the zero-copy
            arenas.
        slots: The place of each item.
        slices: The slices, which cover each arena without overlap.
    """

    items: tuple[Item, ...]
    arenas: tuple[Arena, ...]
    slots: tuple[Slot, ...]
    slices: tuple[Slice, ...]


def plan(
    items: Sequence[Item],
    *,
    slice_bytes: int = DEFAULT_SLICE_BYTES,
    ends: Collection[int] = (),
    tail_bytes: int | None = None,
    zero_copy_bytes: int | None = None,
) -> Plan:
    """Lays out an exchange.

    Args:
        items: The tensors, in the order in which they will be complete.
        slice_bytes: Size of a slice; the last slices of an arena may be smaller.
        ends: Indices of items after which a slice ends, so that what is complete by then is sent
            without waiting for later items. Slices between two ends have equal sizes.
        tail_bytes: Largest size of the last slice of an arena, for exchanges that run while items
            are still being computed; None for ``slice_bytes``.
        zero_copy_bytes: Items of this size or larger remain in their own memory; None for none.

    Raises:
        ValueError: A slice cannot hold one element.
    """
    arenas: list[Arena] = []
    slots: list[Slot] = [Slot(0, 0, 0)] * len(items)
    slices: list[Slice] = []
    sizes = [item.elements * item.itemsize for item in items]
    zero_copy = [zero_copy_bytes is not None and size >= zero_copy_bytes for size in sizes]
    shared: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        if not zero_copy[i]:
            shared.setdefault(item.dtype, []).append(i)
    groups = [*shared.values(), *([i] for i in range(len(items)) if zero_copy[i])]
    for arena, members in enumerate(groups):
        first = items[members[0]]
        stops = list(accumulate(items[i].elements for i in members))
        for i, stop in zip(members, stops, strict=True):
            slots[i] = Slot(arena, stop - items[i].elements, stop)
        arenas.append(Arena(first.dtype, stops[-1], zero_copy=zero_copy[members[0]]))
        step = slice_bytes // first.itemsize
        if step < 1:
            raise ValueError(f"a slice of {slice_bytes} bytes cannot hold one {first.dtype}")
        # A single item is complete at once; a smaller last slice would be sent no earlier.
        whole = tail_bytes is None or arenas[-1].zero_copy
        tail = step if whole else min(step, max(1, (tail_bytes or 0) // first.itemsize))
        inner = {stops[bisect_right(members, end) - 1] for end in ends if end >= members[0]}
        if ends:
            borders = _even(sorted({*inner, stops[-1]}), step)
        else:
            borders = _borders(stops[-1], step, tail)
        slices += _cut(arena, borders, [(i, slots[i]) for i in members])
    return Plan(tuple(items), tuple(arenas), tuple(slots), tuple(slices))


def _borders(elements: int, step: int, tail: int) -> list[int]:
    """The borders of slices: every ``step`` elements, and ``tail`` before the end."""
    borders = [*range(0, elements, step), elements]
    if elements and elements - borders[-2] > tail:
        borders.insert(-1, elements - tail)
    return borders


def _even(ends: Sequence[int], step: int) -> list[int]:
    """Borders of slices of at most ``step`` elements: up to each end, equal pieces."""
    borders = [0]
    for end in ends:
        start, elements = borders[-1], end - borders[-1]
        pieces = -(-elements // step)
        borders += [start + elements * piece // pieces for piece in range(1, pieces + 1)]
    return borders


def _cut(arena: int, borders: list[int], members: list[tuple[int, Slot]]) -> list[Slice]:
    slices = []
    first = 0
    for start, stop in pairwise(borders):
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


def allocate(plan: Plan, *, device: torch.device | str = "cpu") -> list[torch.Tensor]:
    """Allocates the arenas of a plan.

    Args:
        plan: The plan.
        device: The device of the arenas.

    Returns:
        One zero-filled 1-D tensor per arena; a tensor without elements for a zero-copy arena.
    """
    import torch  # a job over MPI alone has none

    return [
        torch.zeros(
            0 if arena.zero_copy else arena.elements,
            dtype=getattr(torch, arena.dtype),
            device=device,
        )
        for arena in plan.arenas
    ]


def views(
    plan: Plan, arenas: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """The items' places in the arenas.

    Args:
        plan: The plan.
        arenas: Its arenas.
        shapes: The shape of each item.

    Returns:
        One tensor per item, of the item's shape, that shares the arena's memory; a tensor without
        elements for an item in a zero-copy arena.
    """
    return [
        arenas[slot.arena]
        if plan.arenas[slot.arena].zero_copy
        else arenas[slot.arena][slot.start : slot.stop].view(tuple(shape))
        for slot, shape in zip(plan.slots, shapes, strict=True)
    ]
