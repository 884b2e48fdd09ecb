"""One trace of a whole job for Perfetto (or chrome://tracing), from Horovod's timelines.

Horovod 0.28 records on rank 0 alone, and gives every tensor a process. Here every instance is a
process and every tensor a row in it. What rank 0 recorded about the others is theirs: the moment
when an instance submitted a tensor becomes a slice in that instance, until all had submitted it.
Files of other instances are taken as they are, where a Horovod writes them. The slice "program" is
what the launcher saw. The format is the Trace Event Format of Chromium's tracing.
"""

from __future__ import annotations

import json
import os

from popdist.poprun.output.run_folder import write_whole
from popdist.poprun.plan.command import timeline_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.supervisor.outcome import Outcome

    Event = dict[str, Any]

_NEGOTIATION = "NEGOTIATE_"
_EPOCH = "start_time_since_epoch_in_micros"


def merge_timelines(
    folder: str, instances: Sequence[Instance], outcome: Outcome
) -> tuple[list[Event], bool]:
    """Merges the timelines of a job.

    Args:
        folder: The folder for timelines.
        instances: The placed instances.
        outcome: How the job ended.

    Returns:
        The events of the merged trace, and whether Horovod has recorded anything.
    """
    merged: list[Event] = []
    for one in instances:
        name = f"instance {one.index} on {one.host.name}"
        merged += [
            {"ph": "M", "name": "process_name", "pid": one.index, "args": {"name": name}},
            {"ph": "M", "name": "process_sort_index", "pid": one.index,
             "args": {"sort_index": one.index}},
            {"ph": "M", "name": "thread_name", "pid": one.index, "tid": 0,
             "args": {"name": "program"}},
        ]  # fmt: skip
        record = outcome.instances.get(one.index)
        if record is not None and record.started_at:
            ended = record.ended_at or record.started_at
            args = {"exit_code": record.code, "signal": record.signal, "pid": record.pid}
            merged.append(
                {"ph": "X", "name": "program", "pid": one.index, "tid": 0, "args": args,
                 "ts": record.started_at * 1e6, "dur": (ended - record.started_at) * 1e6}
            )  # fmt: skip
    recorded = False
    known = {one.index for one in instances}
    for one in instances:
        path = timeline_file(folder, one.index)
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                events = read_events(file.read())
            recorded = recorded or bool(events)
            merged += _Instance(one.index, known).moved(events)
    return merged, recorded


def read_events(text: str) -> list[Event]:
    """Reads a timeline, also one whose writer was killed in the middle of it.

    Args:
        text: The file: a JSON list, perhaps without its end.

    Returns:
        The events that are whole.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = list(_whole_events(text))
    return [event for event in found if isinstance(event, dict) and event]


def _whole_events(text: str) -> Iterator[Event]:
    decoder = json.JSONDecoder()
    position = text.find("{")
    while position >= 0:
        try:
            event, end = decoder.raw_decode(text, position)
        except ValueError:  # cut off here
            return
        yield event
        position = text.find("{", end)


class _Instance:
    """Moves one instance's events to its process and to the time since the epoch.

    Args:
        index: The instance that recorded them.
        known: Every instance of the job.
    """

    def __init__(self, index: int, known: set[int]) -> None:
        self._index = index
        self._others = known - {index}
        self._offset = 0.0
        self._names: dict[Any, str] = {}
        self._negotiated: dict[Any, str] = {}
        self._submitted: dict[Any, list[tuple[int, float]]] = {}
        self._rows: set[tuple[int, Any]] = set()

    def moved(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events of this instance, and what they tell of others."""
        for event in events:
            yield from self._named(event) if event.get("ph") == "M" else self._timed(event)

    def _named(self, event: Event) -> Iterator[Event]:
        args = event.get("args", {})
        self._offset = args.get(_EPOCH, self._offset)
        if "name" in args:
            row = event.get("pid", 0)
            self._names[row] = args["name"]
            yield from _row(self._index, row, args["name"])

    def _timed(self, event: Event) -> Iterator[Event]:
        kind, name, row = event.get("ph"), str(event.get("name", "")), event.get("pid", 0)
        now = event.get("ts", 0.0) + self._offset
        if kind == "B" and name.startswith(_NEGOTIATION):
            self._negotiated[row], self._submitted[row] = name, []
        elif row in self._negotiated and kind == "X" and name.isdecimal():
            self._submitted[row].append((int(name), now))
            return
        elif row in self._negotiated and kind == "E":
            yield from self._waits(row, now)
        yield {**event, "pid": self._index, "tid": row, "ts": now}

    def _waits(self, row: Any, now: float) -> Iterator[Event]:
        """The others' time between submitting a tensor and all having done so."""
        what = self._negotiated.pop(row)
        for rank, since in self._submitted.pop(row):
            if rank not in self._others:
                continue
            if (rank, row) not in self._rows:
                self._rows.add((rank, row))
                yield from _row(rank, row, self._names.get(row, str(row)))
            yield {
                "ph": "X",
                "name": f"{what}: waits for the others",
                "pid": rank,
                "tid": row,
                "ts": since,
                "dur": now - since,
            }


def _row(index: int, row: Any, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "thread_name", "pid": index, "tid": row, "args": {"name": name}}


def write_timeline(path: str, events: Sequence[Event]) -> None:
    """Writes a trace.

    Args:
        path: The file.
        events: Its events.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(path, json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"}))
