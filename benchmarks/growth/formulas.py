"""Step time against instances, on paper. Pure functions of seconds and bytes.

The usual model of a message: a latency and a time for each byte (Hockney, *The communication
challenge for MPP*, 1994). For what a ring costs in it see Patarasuk and Yuan, *Bandwidth optimal
all-reduce algorithms for clusters of workstations* (2009); for an allreduce of halves, a
reduce-scatter and an allgather, Thakur, Rabenseifner and Gropp, *Optimization of collective
communication operations in MPICH* (2005). The time to add two numbers is a part of the time for a
byte, because it is measured with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SLICE_BYTES = 4 * 2**20
"""popdist exchanges large gradients in slices of this size, one after the other."""


@dataclass(frozen=True)
class Link:
    """What a message takes.

    Attributes:
        latency: Seconds for a message without content.
        per_byte: Seconds for each byte; on a network, of everything that leaves a host.
    """

    latency: float
    per_byte: float


@dataclass(frozen=True)
class Cluster:
    """Hosts that are alike, with the same number of instances each.

    Attributes:
        local: Between instances of one host.
        network: Between hosts.
        per_host: Instances of a host, at most.
        cores: Cores of a host.
        overhead: Seconds before an exchange's first message, in which Horovod's thread wakes up
            and the instances agree on what to exchange.
    """

    local: Link
    network: Link
    per_host: int = 8
    cores: int = 8
    overhead: float = 0.0

    def hosts(self, instances: int) -> int:
        """How many hosts a job needs.

        Args:
            instances: Of the job.

        Returns:
            Hosts.
        """
        return math.ceil(instances / self.per_host)

    def crowding(self, instances: int) -> float:
        """By how much instances that share cores slow each other down.

        Args:
            instances: Of the job.

        Returns:
            1 where each has a core of its own; else instances of a host for each core. Copying and
            adding within a host is done by the cores, so it slows down as computing does.
        """
        return max(1.0, min(instances, self.per_host) / self.cores)


def ring(bytes_: float, instances: int, link: Link) -> float:
    """An allreduce around a ring: 2 (p - 1) messages of n / p bytes, one after the other.

    Args:
        bytes_: n, what every instance contributes.
        instances: p.
        link: The slowest link of the ring, by which all wait.

    Returns:
        2 (p - 1) (s L + n / p B) seconds, with latency L for each of s slices.
    """
    messages = 2 * (instances - 1)
    return messages * (slices(bytes_) * link.latency + bytes_ / instances * link.per_byte)


def flat(bytes_: float, instances: int, cluster: Cluster) -> float:
    """One ring through all instances, host by host.

    Where links differ, messages queue at the slow ones and hurry over the others. A message is then
    passed on once in the mean time of a link, or in the time for which the slowest link is taken by
    bytes, whichever is longer (the cycle time of a marked graph: Chretienne, *Les reseaux de Petri
    temporises*, 1983).

    Args:
        bytes_: n, what every instance contributes.
        instances: p.
        cluster: Where.

    Returns:
        2 (p - 1) times that, in seconds; the start, when queues build up, is left out.
    """
    local, network = _crowded(cluster, instances), cluster.network
    hosts = cluster.hosts(instances)
    if hosts == 1:
        return _overhead(cluster, instances) + ring(bytes_, instances, local)
    piece, pieces = bytes_ / instances, slices(bytes_)
    inside = pieces * local.latency + piece * local.per_byte
    between = pieces * network.latency + piece * network.per_byte
    mean = (hosts * between + (instances - hosts) * inside) / instances
    longest = max(mean, piece * max(local.per_byte, network.per_byte))
    return _overhead(cluster, instances) + 2 * (instances - 1) * longest


def hierarchical(bytes_: float, instances: int, cluster: Cluster) -> float:
    """Sums within hosts, then between them, then back.

    Each of a host's k instances gets the host's sum of n / k bytes, exchanges it around a ring of
    the h hosts, and spreads the result. The k rings share the host's network, which therefore
    carries n bytes as if there was one instance.

    Args:
        bytes_: n.
        instances: h k, as many on each host.
        cluster: Where.

    Returns:
        The ring of k within a host, in two halves, and the ring of h between hosts, in seconds.
    """
    hosts = cluster.hosts(instances)
    inside = ring(bytes_, min(instances, cluster.per_host), _crowded(cluster, instances))
    between = ring(bytes_, hosts, cluster.network)
    return _overhead(cluster, instances) + inside + between


def step(compute: float, exchange: float, crowding: float = 1.0) -> float:
    """A training step that exchanges when it has computed.

    Args:
        compute: Seconds that an instance computes on a core of its own.
        exchange: Seconds of the exchange.
        crowding: See `Cluster.crowding`.

    Returns:
        Seconds: the most that it takes. Overlap hides at most ``compute`` of the exchange.
    """
    return compute * crowding + exchange


def overlapped(compute: float, exchange: float, crowding: float = 1.0) -> float:
    """A training step whose exchange is hidden as far as possible.

    Args:
        compute: Seconds that an instance computes on a core of its own.
        exchange: Seconds of the exchange.
        crowding: See `Cluster.crowding`.

    Returns:
        Seconds: the least that it takes.
    """
    return max(compute * crowding, exchange)


def fitted(message: float, small: float, large: float, bytes_: int) -> tuple[float, Link]:
    """The constants that explain what two instances were measured to take.

    Args:
        message: Seconds of an allreduce of next to nothing by MPI alone: two messages.
        small: Seconds of the same by popdist.
        large: Seconds of a large exchange by popdist.
        bytes_: Its bytes.

    Returns:
        Seconds of an exchange before its first message, and the link; no part is below 0.
    """
    latency, overhead = message / 2, max(small - message, 0.0)
    rest = large - overhead - 2 * slices(bytes_) * latency
    return overhead, Link(latency, max(rest, 0.0) / bytes_)


def slices(bytes_: float) -> int:
    """In how many pieces so many bytes are exchanged.

    Args:
        bytes_: What every instance contributes.

    Returns:
        Slices, at least one.
    """
    return max(1, math.ceil(bytes_ / SLICE_BYTES))


def _crowded(cluster: Cluster, instances: int) -> Link:
    factor = cluster.crowding(instances)
    return Link(cluster.local.latency * factor, cluster.local.per_byte * factor)


def _overhead(cluster: Cluster, instances: int) -> float:
    return cluster.overhead * cluster.crowding(instances) if instances > 1 else 0.0
