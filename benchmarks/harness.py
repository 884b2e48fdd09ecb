"""What a benchmark is, and how a selection of them is run."""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.machine import busy_reason, describe, load_average, usable_cores, watch
from benchmarks.sampling import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.rows import Aim, Row

_QUICK_SHARE = 0.25
"""About how much of a full run's time a quick one takes: starting processes stays."""


@dataclass(frozen=True)
class Effort:
    """How much work a benchmark may do.

    Attributes:
        quick: Whether it is only to show that everything works and about what comes out.
    """

    quick: bool = False

    def choose(self, *, full: int, quick: int) -> int:
        """Picks a number of repetitions or the like.

        Args:
            full: For results to publish.
            quick: For a look.

        Returns:
            One of them.
        """
        return quick if self.quick else full


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One entry of the suite.

    Attributes:
        name: What ``--only`` calls it.
        what: One line: what is measured, against whom.
        aims: What its rows have to reach.
        measure: Takes the measurements.
        seconds: About how long a full run takes on two cores, to estimate what remains.
    """

    name: str
    what: str
    measure: Callable[[Effort], Iterable[Row]]
    aims: tuple[Aim, ...] = ()
    seconds: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one benchmark found.

    Attributes:
        benchmark: Its name.
        rows: Its rows; where it failed, those from before.
        seconds: How long it took.
        measured: When it ended, in UTC (ISO 8601).
        others: Cores that others kept busy meanwhile; None where not known.
        busy: Why no verdict can be given; None on a quiet machine.
        error: Why it failed; None where it did not.
    """

    benchmark: str
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0
    measured: str | None = None
    others: float | None = None
    busy: str | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run of the suite found.

    Attributes:
        machine: The facts about the machine, load included.
        results: One for each benchmark, in the order of the suite.
        quick: Whether it was a quick run.
    """

    machine: dict[str, object]
    results: tuple[Result, ...]
    quick: bool = False


class UnknownBenchmarkError(ValueError):
    """A name that no benchmark has."""


def select(suite: Sequence[Benchmark], names: Sequence[str]) -> list[Benchmark]:
    """Picks benchmarks by name.

    Args:
        suite: All of them.
        names: Those wanted; none for all.

    Returns:
        The wanted ones in the order of the suite.

    Raises:
        UnknownBenchmarkError: A name that none of them has.
    """
    known = [benchmark.name for benchmark in suite]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise UnknownBenchmarkError(f"no benchmark is called {name!r}; {advice}")
    return [benchmark for benchmark in suite if not names or benchmark.name in names]


def run(
    benchmarks: Sequence[Benchmark],
    effort: Effort,
    progress: Callable[[str], None],
    save: Callable[[Report], None] | None = None,
) -> Report:
    """Runs benchmarks one after the other.

    One that fails does not keep the others from running.

    Args:
        benchmarks: Which.
        effort: How much work each may do.
        progress: Is told what happens, line by line.
        save: Gets what there is after each benchmark, so that nothing is lost of a run that ends
            early.

    Returns:
        The results.
    """
    facts, load_at_start = describe(), load_average()
    remaining = Remaining(benchmarks, effort)
    results: list[Result] = []
    report = Report(machine=facts, results=(), quick=effort.quick)
    for number, benchmark in enumerate(benchmarks, 1):
        progress(f"[{number}/{len(benchmarks)}] {benchmark.name}: {benchmark.what}")
        progress(f"    {remaining}")
        result = _run_one(benchmark, effort, load_at_start)
        remark = result.error or result.busy
        progress(f"    {result.seconds:.1f} s" + (f"; {remark}" if remark else ""))
        results.append(result)
        remaining.took(result.seconds)
        load = {"average_at_start": load_at_start, "average_at_end": load_average()}
        report = Report(machine={**facts, "load": load}, results=tuple(results), quick=effort.quick)
        if save is not None:
            save(report)
    return report


class Remaining:
    """How long a run still takes: what was declared, scaled by how long it really took so far.

    Args:
        benchmarks: What is run, in this order.
        effort: How much work each does.
    """

    def __init__(self, benchmarks: Sequence[Benchmark], effort: Effort) -> None:
        share = _QUICK_SHARE if effort.quick else 1.0
        self._declared = [benchmark.seconds * share for benchmark in benchmarks]
        self._taken: list[float] = []

    def took(self, seconds: float) -> None:
        """Notes that the next benchmark has ended.

        Args:
            seconds: How long it took.
        """
        self._taken.append(seconds)

    def seconds(self) -> float:
        """The estimate.

        Returns:
            Seconds; never below those declared, since the first benchmarks are short and tell
            little.
        """
        done = len(self._taken)
        rest = sum(self._declared[done:])
        expected = sum(self._declared[:done])
        return rest * max(1.0, sum(self._taken) / expected) if expected else rest

    def __str__(self) -> str:
        return f"about {max(1, round(self.seconds() / 60))} min remain"


def _run_one(benchmark: Benchmark, effort: Effort, load_at_start: float) -> Result:
    rows: list[Row] = []
    error = None
    with watch() as seen:
        try:
            rows.extend(benchmark.measure(effort))
        except MeasurementError as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 - a defect of one must not lose the others
            error = f"{type(failure).__name__}: {failure}"
    busy = busy_reason(seen.others, load_at_start, usable_cores())
    return Result(
        benchmark=benchmark.name,
        rows=tuple(row.refuse(busy) for row in rows),
        seconds=seen.seconds,
        measured=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        others=seen.others,
        busy=busy,
        error=error,
    )
