"""Starts the jobs and makes the rows.

Horovod reads its settings once in the life of a process, so popdist and Horovod's defaults run in
jobs of their own, each beside plain torch and DDP; their samples are joined.

What of the communication is exposed is a step's time less that of plain torch on the same ranks
before Horovod is started, which exchange nothing: Horovod's thread slows down whatever computes
beside it, and that is a part of its price. The difference is smaller than what a machine's speed
drifts by within a job, and between jobs. So each step is compared with the step of plain torch in
the same turn, and plain torch beside Horovod's thread with plain torch in the same job before it;
the medians of both differences are added. A step beside its limit is compared turn by turn as well.

Where as many ranks compute as there are cores, no core is left for the exchange. Its limit is
measured in the same jobs: plain torch beside an exchange of as many bytes that waits for no
gradient. The limit of DDP's hooks is such an exchange beside a DDP that sends nothing. An aim
beyond a limit has no verdict, and the row says what the limit is; the step is then held to the
limit.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ranks import run_on_ranks
from benchmarks.rows import UNITS, Aim, Row, compare
from benchmarks.sampling import Missing, Samples, slowest
from benchmarks.torch_steps import lightning, memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness import Effort

DDP_AIM = Aim(sentence="exposed communication at most half of DDP's", of="ratio", at_most=0.5)
HOOK_AIM = Aim(
    sentence="exposed communication of DDP with popdist's hook at most 0.6 of DDP's over gloo",
    of="ratio",
    at_most=0.6,
)
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
FLOOR_AIM = Aim(
    sentence="a step at most 1.05 times as long as computing and the exchange one after the other",
    of="ratio",
    at_most=1.05,
    was="as on two ranks that exchange nothing",
)
LIMIT_AIM = Aim(
    sentence="a step at most 1.05 times as long as computing beside an exchange that waits for "
    "nothing",
    of="ratio",
    at_most=1.05,
    was="exposed communication at most half of DDP's, where this limit exposes more",
)
HOOK_LIMIT_AIM = Aim(
    sentence="a step of DDP with popdist's hook at most 1.03 times as long as one of DDP that "
    "sends nothing, beside an exchange that waits for nothing",
    of="ratio",
    at_most=1.03,
)
AIMS = (
    DDP_AIM,
    HOOK_AIM,
    HOROVOD_AIM,
    OVERHEAD_AIM,
    SCALING_AIM,
    FLOOR_AIM,
    LIMIT_AIM,
    HOOK_LIMIT_AIM,
)

_NAMES = ("25 M perceptron", "residual network", "transformer")
_OURS = ("popdist model", "popdist loop")
_PLAIN, _HOROVOD, _ACCELERATE = "plain torch", "Horovod", "accelerate"
_HOOK = "DDP with popdist's hook"
_COMPILED, _EXCHANGE = "compiled ", "the exchange alone"
_BESIDE, _AGAIN = f"an exchange beside {_PLAIN}", f"again {_PLAIN}"
_BESIDE_DDP = "an exchange beside DDP"
_STARTED = {*_OURS, _HOOK, *(_COMPILED + ours for ours in _OURS), _HOROVOD, _EXCHANGE}

_NOTE = "one thread a rank"

Window = dict[str, list[float]]
"""Seconds by contender, of turns that they took together."""


def measure(effort: Effort) -> Iterator[Row]:
    """Times training steps on two ranks and on one.

    Args:
        effort: How many.

    Yields:
        For each model: steps and exposed communication against DDP and Horovod; the overhead on one
        rank; the scaling from one rank to two; steps against two ranks that exchange nothing, or
        whose exchange waits for nothing, and against accelerate; plain torch twice; peak memory on
        two ranks. For one of them: Lightning, and the same with ``torch.compile``.
    """
    repetitions = effort.choose(full=7, quick=3)
    rounds = effort.choose(full=2, quick=1)
    # Differences within a turn are those of popdist's jobs, so these are the ones that need more.
    kinds = ("popdist", "horovod", "popdist")[: rounds + 1]
    for name in _NAMES:
        two = [window for kind in kinds for window in _run(name, kind, 2, repetitions)]
        # Plain torch in turns with the others: what it takes at another moment, with no other's
        # memory in the caches, says nothing of what wrapping it costs.
        [one] = _run(name, "popdist", 1, 2 * repetitions)
        yield from rows(name, one, two)
    # Compiling takes longer than all samples, so one model has to do; for Lightning as well.
    name = _NAMES[0]
    yield from lightning.rows(name, rounds, repetitions)
    [one] = _run(name, "compiled", 1, 2 * repetitions)
    two = _run(name, "compiled", 2, repetitions)
    yield from compiled_rows(name, one, two)
    for name in _NAMES[: effort.choose(full=len(_NAMES), quick=1)]:
        yield from memory.rows(name)


def rows(name: str, one: Window, two: Sequence[Window]) -> Iterator[Row]:
    """Makes the rows of one model.

    Args:
        name: Of the model.
        one: Seconds on one rank.
        two: Seconds on two ranks, in each window of each job.

    Yields:
        The rows.
    """
    steps = _joined(two)
    for ours in _OURS:
        for peer, aim in (("DDP", DDP_AIM), (_HOROVOD, HOROVOD_AIM)):
            yield _row(f"{ours}, {name}: step, 2 ranks", steps[ours], peer, steps[peer])
            exposed = _exposed(f"{ours}, {name}", two, ours, peer, aim)
            yield exposed.refuse(_beyond(two, exposed, _BESIDE) if peer == "DDP" else None)
        overhead = _row(
            f"{ours}, {name}: step, 1 rank", one[ours], _PLAIN, one[_PLAIN], OVERHEAD_AIM
        )
        yield overhead.refuse(_noise(one))
        aim_here = SCALING_AIM if name == "residual network" else None
        scaling = _row(f"{ours}, {name}: step, 2 ranks", steps[ours], "1 rank", one[ours], aim_here)
        yield scaling.refuse(_beyond_scaling(min(steps[_BESIDE]), min(one[_PLAIN])))
        yield _floor(f"{ours}, {name}", steps[ours], two, _PLAIN)
        yield _in_turns(f"{ours}, {name}: step, 2 ranks", two, ours, _BESIDE, LIMIT_AIM)
    yield _row(f"{_HOOK}, {name}: step, 2 ranks", steps[_HOOK], "DDP", steps["DDP"])
    exposed = _exposed(f"{_HOOK}, {name}", two, _HOOK, "DDP", HOOK_AIM)
    yield exposed.refuse(_beyond(two, exposed, _BESIDE_DDP))
    yield _in_turns(f"{_HOOK}, {name}: step, 2 ranks", two, _HOOK, _BESIDE_DDP, HOOK_LIMIT_AIM)
    loop = _OURS[-1]
    yield _row(f"{loop}, {name}: step, 2 ranks", steps[loop], _ACCELERATE, steps.get(_ACCELERATE))
    nothing = f"{_PLAIN}, {name}: step, 2 ranks that exchange nothing"
    yield _row(nothing, _before(two)[_PLAIN], "1 rank", one[_PLAIN])
    yield _row(f"{_AGAIN}, {name}: step, 1 rank", one[_AGAIN], _PLAIN, one[_PLAIN])
    yield _exposed(f"{_BESIDE}, {name}", two, _BESIDE, "DDP", None)
    exchange = Samples(tuple(steps[_EXCHANGE]))
    yield compare(f"{_EXCHANGE}, {name}: 2 ranks", exchange, unit="ms", note=_NOTE)


def compiled_rows(name: str, one: Window, two: Sequence[Window]) -> Iterator[Row]:
    """Makes the rows of one model that all contenders compile with ``torch.compile``.

    Args:
        name: Of the model.
        one: Seconds on one rank.
        two: Seconds on two ranks, before Horovod is started and with it.

    Yields:
        The rows.
    """
    steps = _joined(two)
    plain, ddp = _COMPILED + _PLAIN, f"{_COMPILED}DDP"
    for ours in (_COMPILED + ours for ours in _OURS):
        title = f"{ours}, {name}"
        yield _row(f"{title}: step, 1 rank", one[ours], plain, one[plain], OVERHEAD_AIM)
        yield _row(f"{title}: step, 2 ranks", steps[ours], ddp, steps[ddp])
        yield _exposed(title, two, ours, ddp, DDP_AIM, plain=plain)
        yield _floor(title, steps[ours], two, plain)


def _joined(windows: Sequence[Window]) -> Window:
    """The seconds of each contender in all windows."""
    contenders = {key: None for window in windows for key in window}
    return {
        contender: [seconds for window in windows for seconds in window.get(contender, ())]
        for contender in contenders
    }


def _before(two: Sequence[Window]) -> Window:
    """The seconds of contenders while no thread of Horovod ran beside them."""
    return _joined([window for window in two if not _is_started(window)])


def _is_started(window: Window) -> bool:
    """Whether Horovod's thread ran in a window of time."""
    return bool(window.keys() & _STARTED)


def _floor(name: str, ours: list[float], two: Sequence[Window], plain: str) -> Row:
    """A step beside its limit: with as many ranks as cores, no core is left for the exchange."""
    nothing = _before(two)[plain]
    exchange = min(_joined(two)[_EXCHANGE])
    peer = "computing, then the exchange alone"
    both = [seconds + exchange for seconds in nothing]
    return _row(f"{name}: step, 2 ranks", ours, peer, both, FLOOR_AIM)


def _noise(one: Window) -> str | None:
    """Why the cost of wrapping cannot be told, where it is smaller than that of nothing."""
    first, again = (min(one[name]) for name in (_PLAIN, _AGAIN))
    ratio = max(first, again) / min(first, again)
    limit = OVERHEAD_AIM.at_most or 0.0
    return f"{_PLAIN} and the same again differ by {ratio - 1:.1%}" if ratio > limit else None


def _beyond_scaling(beside: float, one: float) -> str | None:
    """Why two ranks cannot scale as asked for, where their limit does not."""
    reached = beside / one
    limit = SCALING_AIM.at_most or 0.0
    return (
        f"its limit, {_BESIDE}, takes {reached:.3f} of 1 rank's step" if reached > limit else None
    )


def _beyond(two: Sequence[Window], exposed: Row, beside: str) -> str | None:
    """Why exposed communication cannot be as short as asked for, where its limit is not."""
    limit = _exposed("", two, beside, "DDP", None).value or 0.0
    aim = exposed.aim or DDP_AIM
    allowed = (aim.at_most or 0.0) * (exposed.peer_value or 0.0)
    return f"its limit, {beside}, exposes {limit:.1f} ms" if limit > allowed else None


def _exposed(
    name: str, two: Sequence[Window], ours: str, peer: str, aim: Aim | None, *, plain: str = _PLAIN
) -> Row:
    unit = "ms"
    value, peer_value = (
        max(_beyond_plain(two, who, plain), 0.0) * UNITS[unit] for who in (ours, peer)
    )
    return Row(
        name=f"{name}: exposed communication",
        unit=unit,
        value=value,
        median=value,
        samples=sum(len(window.get(ours, ())) for window in two),
        peer=peer,
        peer_value=peer_value,
        peer_median=peer_value,
        aim=aim,
        note="more than plain torch in the same turn, and more for both by Horovod's thread; "
        "medians",
    )


def _beyond_plain(two: Sequence[Window], who: str, plain: str) -> float:
    """Seconds of a step beyond those of plain torch on ranks without Horovod's thread."""
    # DDP, which is in all windows, counts as it is without that thread.
    windows, slowed = [w for w in two if who in w and not _is_started(w)], 0.0
    if not windows:
        jobs = [job for job in itertools.pairwise(two) if who in job[1]]  # before, and during
        windows = [during for _, during in jobs]
        slowed = statistics.median(
            statistics.median(during[plain]) - statistics.median(before[plain])
            for before, during in jobs
        )
    pairs = [pair for window in windows for pair in zip(window[who], window[plain], strict=True)]
    return slowed + statistics.median(taken - computing for taken, computing in pairs)


def _in_turns(name: str, two: Sequence[Window], ours: str, peer: str, aim: Aim) -> Row:
    """A step beside a peer's in the same turn: medians, with the median of their ratios."""
    pairs = [
        pair
        for window in two
        if ours in window and peer in window
        for pair in zip(window[ours], window[peer], strict=True)
    ]
    value = statistics.median(taken for taken, _ in pairs) * UNITS["ms"]
    peer_value = value / statistics.median(taken / limit for taken, limit in pairs)
    return Row(
        name=name,
        unit="ms",
        value=value,
        median=value,
        samples=len(pairs),
        peer=peer,
        peer_value=peer_value,
        peer_median=peer_value,
        aim=aim,
        note=f"{_NOTE}; medians, the peer's by the ratio of steps in the same turn",
    )


def _row(
    name: str, ours: list[float], peer: str, theirs: list[float] | None, aim: Aim | None = None
) -> Row:
    return compare(
        name,
        Samples(tuple(ours)),
        unit="ms",
        peer=peer,
        against=Samples(tuple(theirs)) if theirs else Missing(f"{peer} is not installed"),
        aim=aim,
        note=_NOTE,
    )


def _run(name: str, kind: str, ranks: int, repetitions: int) -> list[Window]:
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        answers = run_on_ranks(
            "benchmarks.torch_steps.job:measure",
            ranks=ranks,
            launcher="mpirun" if kind == "horovod" else "poprun",
            # gloo otherwise looks for an interface by the host's name, which need not resolve.
            env={"GLOO_SOCKET_IFNAME": "lo"},
            timeout=600.0,
            workload=name,
            kind=kind,
            repetitions=repetitions,
            store=str(Path(folder) / "gloo"),
        )
    return [
        {contender: slowest([rank[contender] for rank in window]) for contender in window[0]}
        for window in zip(*answers, strict=True)
    ]
