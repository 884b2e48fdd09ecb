"""Measures what the model needs and predicts on this host, and what planning takes at each size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.growth.formulas import Cluster, Link, fitted, flat, step
from benchmarks.machine import usable_cores
from benchmarks.planning import plan
from benchmarks.ranks import run_on_ranks
from benchmarks.rows import Row, compare
from benchmarks.sampling import MeasurementError, Missing, Samples, slowest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

    Times = dict[str, Samples]

SMALL, LARGE = 4 * 2**10, 16 * 2**20
"""The exchanges from which the link within a host is worked out; steps exchange the larger."""

RANKS = (1, 2, 4, 8)
PLANNED = (1, 8, 64, 512, 4096, 8192)
PER_HOST = 8

_MODEL = "model"


def measure(effort: Effort) -> Iterator[Row]:
    """Measures steps on 1 to 8 ranks, and plans jobs of 1 to 8,192 instances.

    Args:
        effort: How much to measure.

    Yields:
        The constants; compute, exchange and step of each number of ranks against the model; what
        planning takes.

    Raises:
        MeasurementError: One or two ranks do not run; without them there is no model.
    """
    repetitions = effort.choose(full=12, quick=3)
    ranks = RANKS[: effort.choose(full=4, quick=3)]
    times = {count: _times(count, repetitions) for count in ranks}
    for needed in (times[1], times[2]):
        if isinstance(needed, Missing):
            raise MeasurementError(needed.reason)
    yield from rows(times, usable_cores())
    for instances in PLANNED:
        took = [
            plan(max(1, instances // PER_HOST), min(instances, PER_HOST))[0]
            for _ in range(effort.choose(full=5, quick=1))
        ]
        yield compare(
            f"plan {instances} instances",
            Samples(tuple(took)),
            unit="ms",
            note="poprun --dry-run=yes from start to end, 8 instances a host",
            parameters={"what": "plan", "instances": instances},
        )


def rows(times: dict[int, Times | Missing], cores: int) -> Iterator[Row]:
    """Makes the rows of what was measured on ranks.

    Args:
        times: By the number of ranks; those of 1 and 2 are there.
        cores: That the ranks share.

    Yields:
        The constants, then each number of ranks against the model.
    """
    one, two = times[1], times[2]
    assert isinstance(one, dict)  # noqa: S101 - the caller's promise
    assert isinstance(two, dict)  # noqa: S101 - as above
    compute = one["compute"].minimum
    overhead, link = fitted(
        two["message"].minimum, two[str(SMALL)].minimum, two[str(LARGE)].minimum, LARGE
    )
    for what, seconds in (
        ("compute", compute),
        ("overhead", overhead),
        ("latency", link.latency),
        ("MiB", link.per_byte * 2**20),
    ):
        yield Row(
            name=f"constant: {what}", unit="us", value=seconds * 1e6, samples=1,
            parameters={"what": what, "cores": cores},
        )  # fmt: skip
    host = Cluster(link, link, per_host=max(RANKS), cores=cores, overhead=overhead)
    for count, measured in times.items():
        exchange, crowding = flat(LARGE, count, host), host.crowding(count)
        model = {
            "compute": compute * crowding,
            str(LARGE): exchange,
            "step": step(compute, exchange, crowding),
        }
        names = {"compute": "compute", str(LARGE): "exchange of 16 MiB", "step": "step"}
        for key, seconds in model.items():
            if seconds <= 0:  # one rank exchanges nothing
                continue
            yield compare(
                f"{names[key]}, {count} rank{'s' * (count > 1)}",
                measured if isinstance(measured, Missing) else measured[key],
                unit="ms",
                peer=_MODEL,
                against=Samples((seconds,)),
                note=_note(names[key], count, cores),
                parameters={"what": names[key].split()[0], "ranks": count},
            )


def _note(what: str, ranks: int, cores: int) -> str:
    if (what, ranks) == ("compute", 1) or (what.startswith("exchange") and ranks == 2):  # noqa: PLR2004
        return "the model's constants come from this"
    return f"{ranks} ranks share {cores} cores" if ranks > cores else ""


def _times(ranks: int, repetitions: int) -> Times | Missing:
    try:
        answers = run_on_ranks(
            "benchmarks.growth.job:measure",
            ranks=ranks,
            launcher="poprun",
            sizes=[SMALL, LARGE],
            repetitions=repetitions,
        )
    except MeasurementError as error:
        return Missing(str(error))
    return {
        name: Samples(tuple(slowest([answer[name] for answer in answers]))) for name in answers[0]
    }


def link_of(latency: float, mebibyte: float) -> Link:
    """A link from its recorded constants.

    Args:
        latency: Microseconds of a message.
        mebibyte: Microseconds of a MiB.

    Returns:
        The link.
    """
    return Link(latency / 1e6, mebibyte / 1e6 / 2**20)
