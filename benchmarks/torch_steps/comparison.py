"""Starts the jobs and makes the rows.

Horovod reads its settings once in the life of a process, so popdist and Horovod's defaults run in
jobs of their own, each beside plain torch and DDP; their samples are joined. What of the
communication is exposed is a step's time less that of plain torch on the same ranks, which exchange
nothing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ranks import run_on_ranks
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import Samples, slowest
from benchmarks.torch_steps import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

DDP_AIM = Aim(sentence="exposed communication at most half of DDP's", of="ratio", at_most=0.5)
HOROVOD_AIM = Aim(
    sentence="exposed communication at most a third of Horovod's defaults",
    of="ratio",
    at_most=1 / 3,
)
OVERHEAD_AIM = Aim(
    sentence="a step on one rank at most 3 % longer than plain torch's", of="ratio", at_most=1.03
)
SCALING_AIM = Aim(
    sentence="two ranks train at least 0.95 times 2 times as fast as one",
    of="ratio",
    at_most=1 / 0.95,
)
AIMS = (DDP_AIM, HOROVOD_AIM, OVERHEAD_AIM, SCALING_AIM)

_NAMES = ("25 M perceptron", "residual network", "transformer")
_OURS = ("popdist model", "popdist loop")

Pool = dict[str, list[float]]


def measure(effort: Effort) -> Iterator[Row]:
    """Times training steps on two ranks and on one.

    Args:
        effort: How many.

    Yields:
        For each model: steps and exposed communication against DDP and Horovod; the overhead on one
        rank; the scaling from one rank to two; peak memory on two ranks.
    """
    repetitions = effort.choose(full=8, quick=3)
    rounds = effort.choose(full=2, quick=1)
    for name in _NAMES:
        two: Pool = {}
        for kind in ("popdist", "horovod") * rounds:
            for seconds, samples in _run(name, kind, 2, repetitions).items():
                two.setdefault(seconds, []).extend(samples)
        # Only those that took turns: what plain torch took before, with no other contender's memory
        # in the caches and at another moment, says nothing of what wrapping it costs.
        one = _run(name, "popdist", 1, 2 * repetitions, windows=(1,))
        yield from rows(name, one, two)
    for name in _NAMES[: effort.choose(full=len(_NAMES), quick=1)]:
        yield from memory.rows(name)


def rows(name: str, one: Pool, two: Pool) -> Iterator[Row]:
    """Makes the rows of one model.

    Args:
        name: Of the model.
        one: Seconds by contender on one rank.
        two: Seconds by contender on two ranks.

    Yields:
        The rows.
    """
    alone = min(two["plain torch"])
    for ours in _OURS:
        for peer, aim in (("DDP", DDP_AIM), ("Horovod", HOROVOD_AIM)):
            yield _row(f"{ours}, {name}: step, 2 ranks", two[ours], peer, two[peer])
            yield _row(
                f"{ours}, {name}: exposed communication",
                [max(seconds - alone, 0.0) for seconds in two[ours]],
                peer,
                [max(seconds - alone, 0.0) for seconds in two[peer]],
                aim,
            )
        yield _row(
            f"{ours}, {name}: step, 1 rank",
            one[ours],
            "plain torch",
            one["plain torch"],
            OVERHEAD_AIM,
        )
        aim_here = SCALING_AIM if name == "residual network" else None
        yield _row(f"{ours}, {name}: step, 2 ranks", two[ours], "1 rank", one[ours], aim_here)
    yield _row(
        f"plain torch, {name}: step, 2 ranks that exchange nothing",
        two["plain torch"],
        "1 rank",
        one["plain torch"],
    )


def _row(
    name: str, ours: list[float], peer: str, theirs: list[float], aim: Aim | None = None
) -> Row:
    return compare(
        name,
        Samples(tuple(ours)),
        unit="ms",
        peer=peer,
        against=Samples(tuple(theirs)),
        aim=aim,
        note="one thread a rank",
    )


def _run(
    name: str, kind: str, ranks: int, repetitions: int, windows: tuple[int, ...] = (0, 1)
) -> Pool:
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        answers = run_on_ranks(
            "benchmarks.torch_steps.job:measure",
            ranks=ranks,
            launcher="poprun" if kind == "popdist" else "mpirun",
            # gloo otherwise looks for an interface by the host's name, which need not resolve.
            env={"GLOO_SOCKET_IFNAME": "lo"},
            timeout=600.0,
            workload=name,
            kind=kind,
            repetitions=repetitions,
            store=str(Path(folder) / "gloo"),
        )
    joined: Pool = {}
    for window in windows:
        for contender in answers[0][window]:
            seconds = slowest([answer[window][contender] for answer in answers])
            joined.setdefault(contender, []).extend(seconds)
    return joined
