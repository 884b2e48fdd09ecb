"""Starts the jobs and makes the rows.

Horovod reads its settings once in the life of a process (it crashes when it is started again after
a setting was given), so its defaults and popdist's cannot take turns in the same ranks. Two kinds
of jobs take turns instead. Each measures memcpy, MPI and gloo as well; these are joined over all
jobs, and where memcpy itself moved between the jobs, no verdict is given.
"""

from __future__ import annotations

import tempfile
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.exchange.cases import MIB, Case, cases
from benchmarks.ranks import run_on_ranks
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import MeasurementError, Missing, Samples, drift, slowest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness import Effort

SLICED_AIM = Aim(
    sentence="64 MiB within 1.15 times MPI_Allreduce in slices",
    of="ratio",
    at_most=1.15,
    was="within 1.5 times memcpy; 3 times faster than Horovod's defaults with one tensor",
)
HOROVOD_AIM = Aim(
    sentence="64 MiB in several tensors 3 times faster than Horovod's defaults",
    of="ratio",
    at_most=1 / 3,
)

_RANKS = 2
_AIMED_SIZE = 64 * MIB
_ACCEPTED_DRIFT = 1.25
_PEERS = ("MPI", "MPI sliced", "torch gloo")
_HOROVOD = {"defaults": "Horovod defaults", "popdist": "popdist"}


@dataclass
class Pool:
    """What all jobs measured of one case.

    Attributes:
        case: The case.
        seconds: All samples by contender; each the time of the slowest rank.
        memcpy: The minimum of memcpy in each job.
    """

    case: Case
    seconds: dict[str, list[float]] = field(default_factory=dict)
    memcpy: list[float] = field(default_factory=list)

    def add(self, windows: Sequence[dict[str, list[float]]]) -> None:
        """Adds what one job measured.

        Args:
            windows: The samples by contender in each window of time.
        """
        for window in windows:
            for contender, seconds in window.items():
                self.seconds.setdefault(contender, []).extend(seconds)
        self.memcpy.append(min(min(window["memcpy"]) for window in windows))

    def distrust(self) -> str | None:
        """Why jobs cannot be compared with each other.

        Returns:
            The reason; None where memcpy took as long in one as in the other.
        """
        moved = drift(self.memcpy)
        if moved <= _ACCEPTED_DRIFT:
            return None
        return f"memcpy moved by {moved:.2f} between jobs (at most {_ACCEPTED_DRIFT} accepted)"


def measure(effort: Effort) -> Iterator[Row]:
    """Measures the exchange over two ranks.

    Args:
        effort: How much to measure.

    Yields:
        Each contender against memcpy, and popdist against each of the others.
    """
    yield from compare_cases(
        cases(effort),
        repetitions=effort.choose(full=12, quick=4),
        rounds=effort.choose(full=2, quick=1),
    )


def compare_cases(chosen: Sequence[Case], *, repetitions: int, rounds: int) -> Iterator[Row]:
    """Measures some cases.

    Args:
        chosen: Which.
        repetitions: Samples of each contender in each of a job's two windows of time.
        rounds: How many jobs of each kind.

    Yields:
        The rows.

    Raises:
        MeasurementError: Neither kind of job works.
    """
    pools = [Pool(case) for case in chosen]
    gaps: dict[str, Missing] = {}
    notes: dict[str, str] = {}
    for number in range(rounds * len(_HOROVOD)):
        # defaults, popdist, popdist, defaults, ...: neither is always the first.
        order = list(_HOROVOD)[:: -1 if number // len(_HOROVOD) % 2 else 1]
        kind = order[number % len(_HOROVOD)]
        if _HOROVOD[kind] in gaps:
            continue
        try:
            answers = _run_job(kind, chosen, repetitions)
        except MeasurementError as error:
            gaps[_HOROVOD[kind]] = Missing(str(error))
            continue
        notes[_HOROVOD[kind]] = _note(kind, answers[0])
        for index, pool in enumerate(pools):
            pool.add([_join(answers, window, index) for window in range(2)])
    if len(gaps) == len(_HOROVOD):
        raise MeasurementError("\n".join(gap.reason for gap in gaps.values()))
    for pool in pools:
        yield from _rows(pool, gaps, notes)


def _run_job(kind: str, chosen: Sequence[Case], repetitions: int) -> list[Any]:
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        return run_on_ranks(
            "benchmarks.exchange.job:measure",
            ranks=_RANKS,
            launcher="poprun" if kind == "popdist" else "mpirun",
            # gloo otherwise looks for an interface by the host's name, which need not resolve.
            env={"GLOO_SOCKET_IFNAME": "lo"},
            timeout=600.0,
            cases=[astuple(case) for case in chosen],
            repetitions=repetitions,
            horovod=kind,
            store=str(Path(folder) / "gloo"),
        )


def _join(answers: Sequence[Any], window: int, case: int) -> dict[str, list[float]]:
    """The samples of one window and case, with the ranks joined."""
    ranks = [answer["windows"][window][case] for answer in answers]
    return {name: slowest([rank[name] for rank in ranks]) for name in ranks[0]}


def _note(kind: str, answer: dict[str, Any]) -> str:
    settings = ", ".join(f"{k}={v}" for k, v in answer["horovod"].items()) or "no Horovod settings"
    launcher = "poprun" if kind == "popdist" else "mpirun --bind-to none"
    return f"started by {launcher}: one thread and {answer['cores']} cores a rank; {settings}"


def _rows(pool: Pool, gaps: dict[str, Missing], notes: dict[str, str]) -> Iterator[Row]:
    case = pool.case
    times: dict[str, Samples | Missing] = {
        **{name: Samples(tuple(seconds)) for name, seconds in pool.seconds.items()},
        **gaps,
    }
    popdist, defaults = _HOROVOD["popdist"], _HOROVOD["defaults"]
    aims = {(popdist, "MPI sliced"): SLICED_AIM}
    if case.tensors > 1:
        aims[popdist, defaults] = HOROVOD_AIM
    pairs = [(name, "memcpy") for name in (*_PEERS, defaults, popdist)]
    pairs += [(popdist, name) for name in (*_PEERS, defaults)]
    for name, peer in pairs:
        aimed = case.size == _AIMED_SIZE and case.buffers in {"reused", "written"}
        row = compare(
            f"{name}, {case.label}",
            times[name],
            unit="us",
            peer=peer,
            against=times[peer],
            aim=aims.get((name, peer)) if aimed else None,
            note=notes.get(name, ""),
            parameters={
                "contender": name,
                "bytes": case.size,
                "tensors": case.tensors,
                "buffers": case.buffers,
                "ranks": _RANKS,
            },
        )
        yield row.refuse(pool.distrust())
