"""One trace of a whole job for Perfetto (or chrome://tracing), from Horovod's timelines.

Horovod 0.28 records on rank 0 only, with a process per tensor. In the merged trace every instance
is a process, and every tensor a row of the instance. From rank 0's record, the time from an
instance's submission of a tensor until all instances have submitted it becomes a slice of that
instance. Timelines of other instances are copied unchanged where Horovod writes them. The slice
"program" is the launcher's record. The format is Chromium's Trace Event Format.
"""

from __future__ import annotations

import json
import os

from popdist.poprun.plan.command import timeline_file
from popdist.whole_files import write_whole

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
    """The events of the merged trace, and whether Horovod has recorded any event."""
    merged: list[Event] = []
    ended: dict[int, float] = {}
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
        ended[one.index] = 0.0
        if record is not None and record.started_at:
            ended[one.index] = (record.ended_at or record.started_at) * 1e6
            args = {"exit_code": record.code, "signal": record.signal, "pid": record.pid}
            merged.append(
                {"ph": "X", "name": "program", "pid": one.index, "tid": 0, "args": args,
                 "ts": record.started_at * 1e6,
                 "dur": ended[one.index] - record.started_at * 1e6}
            )  # fmt: skip
    recorded = False
    known = {one.index for one in instances}
    for one in instances:
        path = timeline_file(folder, one.index)
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                events = read_events(file.read())
            recorded = recorded or bool(events)
            merged += _Instance(one.index, known).moved(events, ended[one.index])
    return merged, recorded


def read_events(text: str) -> list[Event]:
    """The complete events of a timeline, whose end may be missing after a killed writer."""
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
    """Moves one instance's events to the instance's process and to time since the epoch.

    Args:
        index: The instance that recorded the events.
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
        self._open: dict[Any, int] = {}

    def moved(self, events: Iterable[Event], ended: float) -> Iterator[Event]:
        """The events of this instance, and the derived events of other instances.

        Spans that were open when the instance was killed end with it, at ``ended`` (microseconds).
        """
        last = ended
        for event in events:
            for one in self._named(event) if event.get("ph") == "M" else self._timed(event):
                last = max(last, one.get("ts", 0.0))
                yield one
        for row, count in self._open.items():
            if row in self._negotiated and count:
                yield from self._waits(row, last)
            end = {"ph": "E", "pid": self._index, "tid": row, "ts": last}
            yield from (dict(end) for _ in range(count))

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
        if kind in ("B", "E"):
            self._open[row] = max(0, self._open.get(row, 0) + (1 if kind == "B" else -1))
        yield {**event, "pid": self._index, "tid": row, "ts": now}

    def _waits(self, row: Any, now: float) -> Iterator[Event]:
        """The other instances' time between submitting a tensor and the last submission."""
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
    """Writes a trace atomically.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(path, json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"}))
