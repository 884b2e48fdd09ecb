"""The same exchanges, event by event: who sends what when, over wires that carry one at a time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.growth.formulas import slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.growth.formulas import Cluster, Link


@dataclass(frozen=True)
class Ring:
    """An allreduce around a ring.

    Attributes:
        bytes_: What every rank contributes.
        starts: When each rank begins.
        links: What a message of each rank to the next one takes.
        wires: The wire that each rank sends through; ranks of one host share its network.
    """

    bytes_: float
    starts: Sequence[float]
    links: Sequence[Link]
    wires: Sequence[int]


def simulate(rings: Sequence[Ring]) -> list[list[float]]:
    """Runs rings beside each other.

    A rank sends its next message when it has received the one before and its wire is free. The
    latency of a message passes beside others; its bytes have the wire to themselves.

    Args:
        rings: The rings.

    Returns:
        For each ring, when each of its ranks has the sum.
    """
    ends = [list(ring.starts) for ring in rings]
    free: dict[int, float] = {}
    # When, which message of the rank, which ring, which rank: events of one moment keep this order.
    pending = [
        (start, 0, number, rank)
        for number, ring in enumerate(rings)
        for rank, start in enumerate(ring.starts)
        if len(ring.starts) > 1
    ]
    heapq.heapify(pending)
    while pending:
        now, message, number, rank = heapq.heappop(pending)
        ring = rings[number]
        link, wire, count = ring.links[rank], ring.wires[rank], len(ring.starts)
        free[wire] = max(now, free.get(wire, 0.0)) + ring.bytes_ / count * link.per_byte
        arrives = free[wire] + slices(ring.bytes_) * link.latency
        target = (rank + 1) % count
        ends[number][target] = max(ends[number][target], arrives)
        if message + 1 < 2 * (count - 1):  # the target passes on what has just arrived
            ready = max(arrives, ring.starts[target])
            heapq.heappush(pending, (ready, message + 1, number, target))
    return ends


def simulate_flat(bytes_: float, starts: Sequence[float], cluster: Cluster) -> float:
    """One ring through all instances, host by host.

    Args:
        bytes_: What every instance contributes.
        starts: When each instance begins.
        cluster: Where.

    Returns:
        When the last has the sum.
    """
    count = len(starts)
    several = cluster.hosts(count) > 1
    leaves = [several and ((i + 1) % cluster.per_host == 0 or i + 1 == count) for i in range(count)]
    links = [cluster.network if out else cluster.local for out in leaves]
    [ends] = simulate([Ring(bytes_, starts, links, range(count))])
    return max(ends)


def simulate_hierarchical(bytes_: float, starts: Sequence[float], cluster: Cluster) -> float:
    """Sums within hosts, then between them, then back.

    Args:
        bytes_: What every instance contributes.
        starts: When each instance begins; as many on each host.
        cluster: Where.

    Returns:
        When the last has the sum. The two halves of a host's ring are as long as each other, so
        both are taken before the hosts exchange.
    """
    size = min(cluster.per_host, len(starts))
    hosts = range(len(starts) // size)
    inside = simulate(
        [
            Ring(
                bytes_,
                starts[host * size : (host + 1) * size],
                [cluster.local] * size,
                range(host * size, (host + 1) * size),
            )
            for host in hosts
        ]
    )
    # One ring for each instance of a host, all through the host's one wire.
    between = [
        Ring(
            bytes_ / size,
            [inside[host][place] for host in hosts],
            [cluster.network] * len(hosts),
            hosts,
        )
        for place in range(size)
    ]
    return max(end for ends in simulate(between) for end in ends)
