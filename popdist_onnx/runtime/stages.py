"""Cuts a training graph into stages: after each bucket of gradients, and before the update.

A stage is what one ONNX Runtime session runs. On one instance with one micro-batch per update the
whole graph is one stage. Otherwise the micro-batch part and the update part are cut apart. With an
exchange the micro-batch part is cut again after each bucket of gradients, so that a bucket is sent
while the next stage computes. A tensor that the graph itself sums over all instances is a stage of
its own, which no ONNX Runtime session runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from popdist_onnx.runtime.graph_reader import Step

MOST_BUCKETS = 8
"""More stages would hide no more of the exchange, but cost some 50 us each per micro-batch."""


@dataclass(frozen=True)
class Stage:
    """What one session runs.

    Attributes:
        steps: Indices of the steps, ascending.
        update: Whether the stage runs once per weight update.
        reads: Tensors from outside the stage.
        writes: Tensors that are needed outside the stage.
        complete: Gradients that may be sent after the stage.
        collective: Whether its steps sum tensors over the instances of the job.
    """

    steps: tuple[int, ...]
    update: bool
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    complete: tuple[str, ...] = ()
    collective: bool = False


def buckets(sizes: Mapping[str, int], *, least_bytes: int) -> list[list[str]]:
    """Groups gradients that are sent together, at least ``least_bytes`` in all but the last."""
    full = max(least_bytes, -(-sum(sizes.values()) // MOST_BUCKETS))
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if room <= 0:
            groups.append([])
            room = full
        groups[-1].append(name)
        room -= size
    return groups


def cut(
    steps: Sequence[Step],
    *,
    wanted: Collection[str],
    groups: Sequence[Sequence[str]] = (),
    whole: bool = False,
) -> list[Stage]:
    """Divides a graph into stages, in the order in which they run; update stages are last.

    Args:
        steps: The graph.
        wanted: Tensors that are needed after a run; steps that none of them needs are left out.
        groups: Gradients that are sent together, in the order in which they are complete.
        whole: Whether micro-batch and update part may run as one.
    """
    leaving = [name for group in groups for name in group]
    needed = _ancestors(steps, {*wanted, *leaving})
    place = _places(steps, needed, groups, whole=whole)
    last = len(groups) + 1
    levels = _levels(steps, needed)
    top = max(levels.values(), default=0)
    # What waits for a sum over the instances runs after it, but all updates run last.
    keys = {i: (top if place[i] == last else levels[i], place[i]) for i in needed}
    producer = {name: i for i in needed for name in steps[i].writes}
    order = sorted(set(keys.values()))
    ends = [
        max((order.index(keys[producer[n]]) for n in group if n in producer), default=0)
        for group in groups
    ]
    stages = []
    for number, key in enumerate(order):
        level, index = key
        members = tuple(sorted(i for i in needed if keys[i] == key))
        inside = {name for i in members for name in steps[i].writes}
        outside = {n for i in needed if keys[i] != key for n in steps[i].reads}
        stages.append(
            Stage(
                steps=members,
                update=index == last,
                reads=tuple(_unique(n for i in members for n in sorted(steps[i].reads - inside))),
                writes=tuple(
                    n for n in producer if n in inside and n in {*outside, *wanted, *leaving}
                ),
                complete=tuple(
                    name
                    for group, end in zip(groups, ends, strict=True)
                    if end == number
                    for name in group
                ),
                collective=level % 2 == 1,
            )
        )
    return stages


def _places(
    steps: Sequence[Step],
    needed: Collection[int],
    groups: Sequence[Sequence[str]],
    *,
    whole: bool,
) -> dict[int, int]:
    """The stage of each step: the stage of the first bucket that needs it, or of its inputs."""
    place: dict[int, int] = {}
    for index, group in enumerate(groups):
        for i in _ancestors(steps, set(group)):
            place.setdefault(i, index)
    producer = {name: i for i in needed for name in steps[i].writes}
    last = len(groups) + 1
    for i in sorted(needed):
        if i in place:
            continue
        before = [place[producer[name]] for name in steps[i].reads if name in producer]
        if steps[i].update and not whole:
            place[i] = last
        else:
            place[i] = max(before, default=0)
    return place


def _levels(steps: Sequence[Step], needed: Collection[int]) -> dict[int, int]:
    """Odd numbers for sums over instances, even ones for what runs before and after them."""
    producer = {name: i for i in needed for name in steps[i].writes}
    level: dict[int, int] = {}
    for i in sorted(needed):
        before = max((level[producer[n]] for n in steps[i].reads if n in producer), default=0)
        level[i] = before + (before % 2 != steps[i].collective)
    return level


def _ancestors(steps: Sequence[Step], names: set[str]) -> set[int]:
    """Indices of the steps that the given tensors need."""
    open_names = set(names)
    found = set()
    for index in range(len(steps) - 1, -1, -1):
        if not open_names.isdisjoint(steps[index].writes):
            found.add(index)
            open_names |= steps[index].reads
    return found


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
