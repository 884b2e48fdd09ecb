"""Starts the ranks and makes the rows."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from benchmarks.memory import compare_memory
from benchmarks.programs import find_poprun
from benchmarks.ranks import run_on_ranks
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import MeasurementError, Missing, Samples, slowest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

_HOROVOD_AIM = Aim(sentence="no slower than plain Horovod", of="ratio", at_most=1.0)
_WORKERS_AIM = Aim(
    sentence="1.3 times faster than MultiWorkerMirroredStrategy", of="ratio", at_most=1 / 1.3
)
_OVERHEAD_AIM = Aim(sentence="at most 5 % over plain Keras", of="ratio", at_most=1.05)
_LOOP_AIM = Aim(sentence="at most 5 % over plain TensorFlow", of="ratio", at_most=1.05)
AIMS = (_HOROVOD_AIM, _WORKERS_AIM, _OVERHEAD_AIM, _LOOP_AIM)

_PACKAGE = "benchmarks.tensorflow_training"
_RANKS = 2
_ROW = {
    "strategy": "Keras step under PopDistStrategy",
    "wrapper": "Keras step, popdist_tf.keras",
    "estimator": "Estimator step with host_call",
    "loop": "compiled loop with 2 local replicas, an iteration",
}
_NOTE = "one thread a rank"
_PEERS = {
    "Horovod optimizer": _HOROVOD_AIM,
    "Horovod tape": _HOROVOD_AIM,
    "MultiWorkerMirrored": _WORKERS_AIM,
}


def measure(effort: Effort) -> Iterator[Row]:
    """Measures steps of a small convolutional network, batch 32, one thread for each rank.

    Args:
        effort: How much to measure.

    Yields:
        Steps on two ranks against each peer, then on one; an iteration of a compiled loop; peak
        memory on two ranks.
    """
    steps = effort.choose(full=500, quick=15)
    two = _times("keras_job", _RANKS, steps=steps, ports=_free_ports(_RANKS))
    for ours in ("strategy", "wrapper"):
        for peer, aim in _PEERS.items():
            yield _row(two, ours, ours, peer, aim, _RANKS)
    one = _times("keras_job", 1, steps=steps, ports=[])
    yield _row(one, "strategy", "strategy", "plain Keras", _OVERHEAD_AIM, 1)
    yield _loop(effort.choose(full=40, quick=2))
    yield from _estimators(effort.choose(full=8, quick=1))
    yield from _memory()


def _loop(runs: int) -> Row:
    two_replicas = [*(find_poprun() or ["poprun"]), "--num-instances=1", "--num-replicas=2"]
    try:
        answers = run_on_ranks(
            f"{_PACKAGE}.loop_job:measure", ranks=1, launcher=two_replicas, runs=runs
        )
        times: Any = {name: Samples(tuple(found)) for name, found in answers[0].items()}
    except MeasurementError as error:
        times = Missing(str(error).splitlines()[-1])
    return _row(times, "loop", "loop", "plain loop", _LOOP_AIM, 1)


def _estimators(turns: int) -> Iterator[Row]:
    times = _times("estimator_job", _RANKS, turns=turns)
    yield _row(times, "estimator", "strategy", "Horovod optimizer", _HOROVOD_AIM, _RANKS)
    peer = "MultiWorkerMirrored"
    other = _times("estimator_job", _RANKS, "workers", turns=turns, ports=_free_ports(_RANKS))
    both: dict[str, Samples] | Missing
    if isinstance(times, Missing):
        both = times
    elif isinstance(other, Missing):
        both = other
    else:
        both = {**times, **other}
    note = f"{_NOTE}; two jobs, one after the other"
    yield _row(both, "estimator", "strategy", peer, _WORKERS_AIM, _RANKS, note)


def _memory() -> Iterator[Row]:
    peaks = {name: _peaks(name) for name in ("strategy", "wrapper", *_PEERS)}
    for ours in ("strategy", "wrapper"):
        for peer in _PEERS:
            yield compare_memory(
                f"{_ROW[ours]}, {_RANKS} ranks",
                peaks[ours],
                peer=peer,
                against=peaks[peer],
                parameters={"row": ours, "ranks": _RANKS},
            )


def _peaks(name: str) -> list[int] | str:
    try:
        return run_on_ranks(
            f"{_PACKAGE}.keras_job:peak", ranks=_RANKS, name=name, ports=_free_ports(_RANKS)
        )
    except MeasurementError as error:
        return str(error).splitlines()[-1]


def _row(
    times: dict[str, Samples] | Missing,
    row: str,
    ours: str,
    peer: str,
    aim: Aim | None,
    ranks: int,
    note: str = _NOTE,
) -> Row:
    missing = times if isinstance(times, Missing) else None
    return compare(
        f"{_ROW[row]}, {ranks} rank{'s' if ranks > 1 else ''}",
        missing or times[ours],  # type: ignore[index]
        unit="ms",
        peer=peer,
        against=missing or times[peer],  # type: ignore[index]
        aim=aim,
        note=note,
        parameters={"row": row, "ranks": ranks},
    )


def _times(
    job: str, ranks: int, function: str = "measure", **arguments: Any
) -> dict[str, Samples] | Missing:
    try:
        answers = run_on_ranks(f"{_PACKAGE}.{job}:{function}", ranks=ranks, **arguments)
    except MeasurementError as error:
        return Missing(str(error).splitlines()[-1])
    return {
        name: Samples(tuple(slowest([answer[name] for answer in answers]))) for name in answers[0]
    }


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
