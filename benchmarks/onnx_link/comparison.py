"""Starts the ranks on the two ends of the link and makes the rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.onnx_link.job import COMPUTE, EXCHANGE, FLOOR, LIMIT, SENDING, STEP
from benchmarks.onnx_link.link import FIRST_ADDRESS, Link, missing
from benchmarks.ranks import run_on_ranks
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import MeasurementError, Missing, Samples, slowest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.harness import Effort

HIDDEN_AIM = Aim(
    sentence="at least 80 % of the exchange hidden behind backward", of="value", at_least=80.0
)
FLOOR_AIM = Aim(
    sentence="at least 0.9 of what a thread hides that only sends",
    of="ratio",
    at_least=0.9,
    was="at least 80 % of the exchange hidden behind backward",
)
LIMIT_AIM = Aim(
    sentence="at least 0.9 of what hides of an exchange that waits for nothing",
    of="ratio",
    at_least=0.9,
    was="at least 0.9 of what a thread hides that only sends",
)
AIMS = (HIDDEN_AIM, FLOOR_AIM, LIMIT_AIM)

_RATE = "1gbit"
_WHAT = {
    "mlp-link": "MLP 784-512-1024-1024-1024-1024-10, batch 2048",
    "transformer-link": "4-layer transformer encoder, width 256, 32 x 64 tokens",
}
"""Models whose backward pass takes longer than their exchange: less than that cannot be hidden."""


def measure(effort: Effort) -> Iterator[Row]:
    """Measures training steps of two ranks that a slow link joins.

    Args:
        effort: How much to measure.

    Yields:
        For each model a step beside the same step without an exchange, and the share of the
        exchange that hides, beside that of a thread that only sends and that of an exchange that
        waits for nothing.
    """
    reason = missing()
    if reason:
        for name in _WHAT:
            yield from _rows(name, Missing(reason))
        return
    # Imported here because it brings torch, which choosing a benchmark does not need.
    from benchmarks.onnx_training.models import export

    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        for name in _WHAT:
            path = Path(folder) / f"{name}.onnx"
            export(name, path)
            yield from _rows(name, _times(name, path, effort.choose(full=12, quick=2)))


def _times(name: str, path: Path, repetitions: int) -> Mapping[str, Samples] | Missing:
    try:
        with Link(path.parent, _RATE) as link:
            answers = run_on_ranks(
                "benchmarks.onnx_link.job:link",
                launcher=link.launch(),
                name=name,
                path=str(path),
                repetitions=repetitions,
                address=FIRST_ADDRESS,
            )
    except MeasurementError as error:
        return Missing(str(error))
    return {
        key: Samples(tuple(slowest([answer[key] for answer in answers])))
        for key in (STEP, COMPUTE, EXCHANGE, FLOOR, SENDING, LIMIT)
    }


def _rows(name: str, times: Mapping[str, Samples] | Missing) -> Iterator[Row]:
    gone = times if isinstance(times, Missing) else None
    parts = {} if isinstance(times, Missing) else times
    parameters: dict[str, str | int | float] = {"model": name, "ranks": 2, "rate": _RATE}
    yield compare(
        f"step over 1 Gbit/s, {_WHAT[name]}",
        gone or parts[STEP],
        unit="ms",
        peer="the same step without an exchange",
        against=gone or parts[COMPUTE],
        note="two ranks of one thread, in two network namespaces",
        parameters=parameters,
    )
    yield compare(
        f"exchange alone over 1 Gbit/s, {_WHAT[name]}",
        gone or parts[EXCHANGE],
        unit="ms",
        note="all gradients at once, in the slices of training",
        parameters=parameters,
    )
    share = floor = limit = None
    if gone is None:
        share, limit, floor = (
            hidden_share(*(parts[key].minimum for key in (beside, COMPUTE, all_of_it)))
            for beside, all_of_it in ((STEP, EXCHANGE), (LIMIT, EXCHANGE), (FLOOR, SENDING))
        )
    aims = _aims(floor, limit)
    for (peer, most), aim in zip(
        ((None, None), ("a thread that only sends", floor), ("waiting for nothing", limit)),
        aims,
        strict=True,
    ):
        yield Row(
            name=f"share of the exchange hidden over 1 Gbit/s, {_WHAT[name]}",
            unit="%",
            value=None if share is None else 100 * share,
            samples=0 if gone else len(parts[STEP].seconds),
            peer=peer,
            peer_value=None if most is None else 100 * most,
            aim=aim,
            refused=f"not available: {gone.reason}" if gone else None,
            note=f"not available: {gone.reason}"
            if gone
            else "1 - (step - step without exchange) / exchange alone, of minima; backward is "
            "longer than the exchange",
            parameters=parameters,
        )


def _aims(floor: float | None, limit: float | None) -> tuple[Aim | None, Aim | None, Aim | None]:
    """The one aim that no measured limit contradicts: of the share, of the floor, of the limit."""
    if floor is None or limit is None:
        return HIDDEN_AIM, FLOOR_AIM, LIMIT_AIM
    if 100 * min(floor, limit) >= (HIDDEN_AIM.at_least or 0):
        return HIDDEN_AIM, None, None
    if limit >= (FLOOR_AIM.at_least or 0) * floor:
        return None, FLOOR_AIM, None
    return None, None, LIMIT_AIM


def hidden_share(step: float, compute: float, exchange: float) -> float:
    """How much of an exchange costs a step nothing.

    Args:
        step: Seconds of a step with the exchange.
        compute: Seconds of the same step without it.
        exchange: Seconds of the exchange alone.

    Returns:
        1 where the step is no longer for it, 0 where it is longer by all of it, below where they
        disturb each other.
    """
    return 1 - (step - compute) / exchange
