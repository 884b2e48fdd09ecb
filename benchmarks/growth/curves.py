"""A record and the formulas together: the constants that were measured, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.growth.comparison import LARGE, PER_HOST, link_of
from benchmarks.growth.formulas import Cluster, Link, flat, hierarchical, overlapped, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.document import Document

NETWORKS = {
    "10 Gbit/s": Link(latency=30e-6, per_byte=8 / 10e9),
    "100 Gbit/s": Link(latency=5e-6, per_byte=8 / 100e9),
}
"""Stated, not measured: line rate, with the latency of TCP through a switch for the slower and of
RDMA for the faster."""

SIZES = tuple(2**power for power in range(14))
"""1 to 8,192 instances."""

WAYS = {"ring": flat, "hierarchical": hierarchical}


@dataclass(frozen=True)
class Constants:
    """What was measured on one host.

    Attributes:
        compute: Seconds that an instance computes in a step.
        overhead: Seconds of an exchange before its first message.
        local: The link between instances of a host.
        cores: That the measured ranks shared.
    """

    compute: float
    overhead: float
    local: Link
    cores: int

    def cluster(self, network: str) -> Cluster:
        """Hosts of the model: a core for each of eight instances.

        Args:
            network: A key of `NETWORKS`.

        Returns:
            The cluster.
        """
        return Cluster(
            self.local,
            NETWORKS[network],
            per_host=PER_HOST,
            cores=PER_HOST,
            overhead=self.overhead,
        )


def constants(record: Document) -> Constants | None:
    """Finds the measured constants.

    Args:
        record: A record.

    Returns:
        The constants; None where growth was not measured.
    """
    found = {
        row["parameters"]["what"]: row
        for row in rows_of(record)
        if row["name"].startswith("constant")
    }
    if not {"compute", "overhead", "latency", "MiB"} <= set(found):
        return None
    value = {what: float(row["value"]) for what, row in found.items()}
    return Constants(
        compute=value["compute"] / 1e6,
        overhead=value["overhead"] / 1e6,
        local=link_of(value["latency"], value["MiB"]),
        cores=int(found["compute"]["parameters"]["cores"]),
    )


def rows_of(record: Document) -> list[dict[str, Any]]:
    """The rows of this benchmark.

    Args:
        record: A record.

    Returns:
        Its rows.
    """
    return [row for row in record["rows"] if row["benchmark"] == "growth"]


def predicted(known: Constants, network: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Step times of the model.

    Args:
        known: The measured constants.
        network: A key of `NETWORKS`.

    Yields:
        The number of instances, and the seconds of a step: for each way with no overlap, and for
        the better one with all that overlap can hide.
    """
    cluster = known.cluster(network)
    for instances in SIZES:
        exchange = {way: cost(LARGE, instances, cluster) for way, cost in WAYS.items()}
        times = {way: step(known.compute, seconds) for way, seconds in exchange.items()}
        times["overlapped"] = overlapped(known.compute, min(exchange.values()))
        yield instances, times
