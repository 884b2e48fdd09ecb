"""What a benchmark is, and how a selection of them is run."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.machine import busy_reason, describe, load_average, usable_cores, watch
from benchmarks.sampling import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.rows import Aim, Row


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
    """

    name: str
    what: str
    measure: Callable[[Effort], Iterable[Row]]
    aims: tuple[Aim, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one benchmark found.

    Attributes:
        benchmark: Its name.
        rows: Its rows; none where it failed.
        seconds: How long it took.
        others: Cores that others kept busy meanwhile; None where not known.
        busy: Why no verdict can be given; None on a quiet machine.
        error: Why it failed; None where it did not.
    """

    benchmark: str
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0
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


def run(benchmarks: Sequence[Benchmark], effort: Effort, progress: Callable[[str], None]) -> Report:
    """Runs benchmarks one after the other.

    One that fails does not keep the others from running.

    Args:
        benchmarks: Which.
        effort: How much work each may do.
        progress: Is told what happens, line by line.

    Returns:
        The results.
    """
    load_at_start = load_average()
    results = []
    for number, benchmark in enumerate(benchmarks, 1):
        progress(f"[{number}/{len(benchmarks)}] {benchmark.name}: {benchmark.what}")
        result = _run_one(benchmark, effort, load_at_start)
        remark = result.error or result.busy
        progress(f"    {result.seconds:.1f} s" + (f"; {remark}" if remark else ""))
        results.append(result)
    load = {"average_at_start": load_at_start, "average_at_end": load_average()}
    return Report(machine={**describe(), "load": load}, results=tuple(results), quick=effort.quick)


def _run_one(benchmark: Benchmark, effort: Effort, load_at_start: float) -> Result:
    rows: tuple[Row, ...] = ()
    error = None
    with watch() as seen:
        try:
            rows = tuple(benchmark.measure(effort))
        except MeasurementError as failure:
            error = str(failure)
    busy = busy_reason(seen.others, load_at_start, usable_cores())
    return Result(
        benchmark=benchmark.name,
        rows=tuple(row.refuse(busy) for row in rows),
        seconds=seen.seconds,
        others=seen.others,
        busy=busy,
        error=error,
    )
