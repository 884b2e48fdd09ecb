"""The values that a page shows, computed from the files of a run. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from popdist.report.run_reader import Line, Run

Points = list[tuple[float, float]]

_MOST_POINTS = 400
_MOST_LEVELS = 100
MOST_SHOWN = 12
"""Instances in a picture, beside the slowest."""


@dataclass(frozen=True)
class Work:
    """The time of an instance, in one stretch or in total.

    Attributes:
        round: The last round of the exchange, from 1.
        rounds: The number of rounds.
        computed: Mean seconds of a round in which the instance did not wait.
        waited: Mean seconds of a round in which the instance waited for the exchange.
    """

    round: int
    rounds: int
    computed: float
    waited: float

    @property
    def share(self) -> float:
        """The fraction of the time that the instance waited."""
        whole = self.computed + self.waited
        return self.waited / whole if whole else 0.0


def losses(lines: Iterable[Line]) -> Points:
    """The steps so far, and the mean loss of the steps of each line."""
    return thinned(_losses(lines))


def _losses(lines: Iterable[Line]) -> Points:
    steps, points = 0, []
    for line in lines:
        steps += int(line["count"])
        if "loss" in line:
            points.append((float(steps), float(line["loss"])))
    return points


def mean_loss(steps: Mapping[int, Iterable[Line]]) -> Points:
    """The steps, and the mean of the losses that the instances have there.

    A line stands for all steps since the line before.
    """
    curves = [curve for lines in steps.values() if (curve := _losses(lines))]
    ends = sorted({end for curve in curves for end, _ in curve})
    size = max(1, math.ceil(len(ends) / _MOST_POINTS))
    places = [[end for end, _ in curve] for curve in curves]
    points = []
    for end in ends[::-size][::-1]:  # with the last one
        values = [
            curve[bisect_left(place, end)][1]
            for curve, place in zip(curves, places, strict=True)
            if end <= place[-1]
        ]
        points.append((end, sum(values) / len(values)))
    return points


def throughput(lines: Sequence[Line], began: float) -> Points:
    """Seconds since ``began`` (seconds since 1970), and samples per second between two lines.

    The rate is that of the whole time between two lines, so each has a point at both ends: a stall
    is a low level as long as it took. Lines are taken together up to a hundredth of the run, as
    single steps vary. The first line has no line before it, and is left out.
    """
    parts = [line for line in lines[1:] if "samples" in line]
    least = sum(line["seconds"] for line in parts) / _MOST_LEVELS
    points: Points = []
    samples = seconds = 0.0
    for line in parts:
        samples, seconds = samples + line["samples"], seconds + line["seconds"]
        if seconds > 0 and seconds >= least:
            end = line["time"] - began
            points += [(end - seconds, samples / seconds), (end, samples / seconds)]
            samples = seconds = 0.0
    return points


def work(lines: Sequence[Line]) -> list[Work]:
    """Computing and waiting, in stretches of one or more rounds of the exchange.

    The first line is left out, because it includes building the model and starting up.
    """
    rounds = int(lines[0]["count"]) if lines else 0
    size = max(1, math.ceil((len(lines) - 1) / _MOST_POINTS))
    found = []
    for start in range(1, len(lines), size):
        stretch = lines[start : start + size]
        count = sum(int(line["count"]) for line in stretch)
        rounds += count
        waited = sum(line.get("waited", 0.0) for line in stretch)
        seconds = max(sum(line["seconds"] for line in stretch), waited)
        found.append(Work(rounds, count, (seconds - waited) / count, waited / count))
    return found


def altogether(stretches: Sequence[Work]) -> Work | None:
    """The averages over all stretches of one instance; None without stretches."""
    rounds = sum(one.rounds for one in stretches)
    if not rounds:
        return None
    computed = sum(one.computed * one.rounds for one in stretches) / rounds
    waited = sum(one.waited * one.rounds for one in stretches) / rounds
    return Work(stretches[-1].round, rounds, computed, waited)


def slowest(totals: dict[int, Work]) -> int | None:
    """The instance that computes longest, for which the others wait; None with fewer than two."""
    if len(totals) < 2:  # noqa: PLR2004 - one alone is neither slow nor fast
        return None
    return max(totals, key=lambda index: totals[index].computed)


def memory(run: Run) -> dict[int, float]:
    """Peak memory in bytes by instance: the launcher's value, or the instance's last note."""
    found: dict[int, float] = {}
    for lines in (run.steps, run.exchanges):
        for index, known in lines.items():
            noted = max((line.get("memory", 0) for line in known), default=0)
            found[index] = max(found.get(index, 0), noted)
    for one in run.result.get("instances", []):
        peak = one.get("peak_memory_bytes")
        if isinstance(peak, int | float):
            found[one["index"]] = peak
    return {index: peak for index, peak in sorted(found.items()) if peak}


def waits(trace: Iterable[Line]) -> dict[int, float]:
    """Seconds that each instance waited for others in collectives, by Horovod's trace."""
    found: dict[int, float] = {}
    for event in trace:
        index, length = event.get("pid"), event.get("dur", 0)
        named = str(event.get("name", "")).endswith("waits for the others")
        if named and isinstance(index, int) and isinstance(length, int | float):
            found[index] = found.get(index, 0.0) + length / 1e6
    return dict(sorted(found.items()))


def phases(trace: Iterable[Line]) -> dict[str, tuple[int, float]]:
    """For each phase of the recording instance's collectives, the count and the seconds.

    The longest phase is the first.
    """
    open_: dict[tuple[Any, Any], list[tuple[str, float]]] = {}
    found: dict[str, tuple[int, float]] = {}
    for event in trace:
        row, moment = (event.get("pid"), event.get("tid")), event.get("ts")
        if not isinstance(moment, int | float):
            continue
        if event.get("ph") == "B":
            open_.setdefault(row, []).append((str(event.get("name", "")), moment))
        elif event.get("ph") == "E" and open_.get(row):
            name, since = open_[row].pop()
            count, seconds = found.get(name, (0, 0.0))
            found[name] = (count + 1, seconds + (moment - since) / 1e6)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def shown(instances: Sequence[int], wanted: Iterable[int | None] = ()) -> list[int]:
    """At most twelve evenly spread instances for a picture, and the wanted instances."""
    if len(instances) <= MOST_SHOWN:
        return list(instances)
    step = (len(instances) - 1) / (MOST_SHOWN - 1)
    chosen = {instances[round(number * step)] for number in range(MOST_SHOWN)}
    return sorted(chosen | {one for one in wanted if one is not None and one in instances})


def thinned(points: Points) -> Points:
    """At most four hundred points, each the mean of neighbours; NaN and infinity remain."""
    size = math.ceil(len(points) / _MOST_POINTS)
    if size <= 1:
        return points
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]
