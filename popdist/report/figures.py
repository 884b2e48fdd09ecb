"""What a page shows, worked out from what was read. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from popdist.report.run_reader import Line, Run

Points = list[tuple[float, float]]

_MOST_POINTS = 400
_MOST_SHOWN = 12


@dataclass(frozen=True)
class Work:
    """What an instance did with its time, in one stretch or altogether.

    Attributes:
        round: Up to which round of the exchange, from 1.
        rounds: How many rounds these are.
        computed: Seconds of a round in which it did anything but wait, on average.
        waited: Seconds of a round in which it waited for the exchange.
    """

    round: int
    rounds: int
    computed: float
    waited: float

    @property
    def share(self) -> float:
        """The part of the time that went into waiting."""
        whole = self.computed + self.waited
        return self.waited / whole if whole else 0.0


def losses(lines: Iterable[Line]) -> Points:
    """The loss over steps.

    Args:
        lines: The lines of one instance.

    Returns:
        Steps so far, and the mean loss of those of the line.
    """
    steps, points = 0, []
    for line in lines:
        steps += int(line["count"])
        if "loss" in line:
            points.append((float(steps), float(line["loss"])))
    return thinned(points)


def throughput(lines: Sequence[Line], began: float) -> Points:
    """Samples of a second over time.

    Args:
        lines: The lines of one instance.
        began: What counts as the start, in seconds since 1970.

    Returns:
        Seconds since the start, and samples of a second between two points. The first line has no
        line before it from which to count, and is left out.
    """
    parts = [line for line in lines[1:] if "samples" in line]
    size = max(1, math.ceil(len(parts) / _MOST_POINTS))
    points = []
    for start in range(0, len(parts), size):
        run = parts[start : start + size]
        seconds = sum(line["seconds"] for line in run)
        if seconds > 0:
            samples = sum(line["samples"] for line in run)
            points.append((run[-1]["time"] - began, samples / seconds))
    return points


def work(lines: Sequence[Line]) -> list[Work]:
    """Computing and waiting, over the rounds of the exchange.

    Args:
        lines: The lines of one instance; the first is left out, because building the model and
            starting up belong to it.

    Returns:
        Stretches of one or more rounds.
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
    """All stretches as one.

    Args:
        stretches: Those of one instance.

    Returns:
        The averages; None where there are none.
    """
    rounds = sum(one.rounds for one in stretches)
    if not rounds:
        return None
    computed = sum(one.computed * one.rounds for one in stretches) / rounds
    waited = sum(one.waited * one.rounds for one in stretches) / rounds
    return Work(stretches[-1].round, rounds, computed, waited)


def slowest(totals: dict[int, Work]) -> int | None:
    """The instance for which the others wait: the one that computes longest.

    Args:
        totals: The work of each instance.

    Returns:
        Its index; None where fewer than two are known.
    """
    if len(totals) < 2:  # noqa: PLR2004 - one alone is neither slow nor fast
        return None
    return max(totals, key=lambda index: totals[index].computed)


def memory(run: Run) -> dict[int, float]:
    """The most memory that each instance had.

    Args:
        run: The run.

    Returns:
        Bytes by instance: the launcher's word at the end, or else what the instance noted last.
    """
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
    """How long each instance waited for others in collectives, by Horovod's trace.

    Args:
        trace: The merged events.

    Returns:
        Seconds by instance, of those for which there are any.
    """
    found: dict[int, float] = {}
    for event in trace:
        index, length = event.get("pid"), event.get("dur", 0)
        named = str(event.get("name", "")).endswith("waits for the others")
        if named and isinstance(index, int) and isinstance(length, int | float):
            found[index] = found.get(index, 0.0) + length / 1e6
    return dict(sorted(found.items()))


def phases(trace: Iterable[Line]) -> dict[str, tuple[int, float]]:
    """What the recording instance's collectives spent their time on.

    Args:
        trace: The merged events.

    Returns:
        For each phase how often it came and its seconds, the longest first.
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
    """The instances that a picture shows, where all would be too many.

    Args:
        instances: All of them.
        wanted: Those that must be among them, such as the slowest.

    Returns:
        At most twelve and the wanted ones, evenly spread.
    """
    if len(instances) <= _MOST_SHOWN:
        return list(instances)
    step = (len(instances) - 1) / (_MOST_SHOWN - 1)
    chosen = {instances[round(number * step)] for number in range(_MOST_SHOWN)}
    return sorted(chosen | {one for one in wanted if one is not None and one in instances})


def thinned(points: Points) -> Points:
    """Fewer points, each the mean of its neighbours.

    Args:
        points: All of them.

    Returns:
        At most four hundred. One that is no finite number stays so, for a picture to show the gap.
    """
    size = math.ceil(len(points) / _MOST_POINTS)
    if size <= 1:
        return points
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]
