"""Reads a run's folder: the result, the instances' metrics, the trace, and the ends of logs.

Every file may be missing or cut off, because reports are made of failed runs too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from popdist.errors import LaunchError
from popdist.poprun.output.timeline import read_events

Line = dict[str, Any]

_METRICS = re.compile(r"metrics\.(\d{1,9})\.jsonl")
_OUTPUT = re.compile(r"instance\.(\d{1,9})\.(out|err)")
_LARGEST_TRACE = 512 * 2**20
_TYPES: dict[str, tuple[type, ...]] = {
    "job": (dict,),
    "hosts": (list,),
    "attempts": (list,),
    "error": (dict, type(None)),
}
_COUNTS = ("index", "replicas", "replica_offset")
_MOST = 2**63
_TAIL_BYTES = 8192
_TAIL_LINES = 15


@dataclass
class Run:
    """What is known of a run.

    Attributes:
        folder: Its folder.
        result: What poprun wrote at the end (``job.json``); empty where it is missing.
        steps: The lines that programs noted, by instance.
        exchanges: The lines that popdist's exchange noted, by instance.
        trace: The events of the merged timeline.
        tails: The last lines of standard error, by instance.
        instances: The indices of all instances that left anything.
        gaps: What is missing, and how to have it next time.
    """

    folder: Path
    result: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, list[Line]] = field(default_factory=dict)
    exchanges: dict[int, list[Line]] = field(default_factory=dict)
    trace: list[Line] = field(default_factory=list)
    tails: dict[int, list[str]] = field(default_factory=dict)
    instances: list[int] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


def read_run(folder: Path, timeline: Path | None = None) -> Run:
    """Reads a run's folder; ``timeline`` is the trace where the result names another path.

    Raises:
        LaunchError: The folder does not exist, or has no files of a run.
    """
    _require_run(folder)
    run = Run(folder)
    run.result = _result(folder, run.gaps)
    newest = _newest_attempt(folder)
    damaged = _metrics(newest, run)
    if damaged:
        run.gaps.append(f"lines of metrics that cannot be read are left out: {damaged}")
    run.trace = _trace(run, timeline)
    logged = {int(found[1]) for path in newest.iterdir() if (found := _OUTPUT.match(path.name))}
    described = {one["index"] for one in run.result.get("instances", [])}
    run.instances = sorted({*described, *logged, *run.steps, *run.exchanges})
    for index in sorted(logged):
        run.tails[index] = _tail(newest / f"instance.{index}.err")
    _tell_gaps(run)
    return run


def _require_run(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file and no folder" if folder.exists() else "does not exist"
        raise _refused(f"the run folder {what}", folder, "ls the folder of --log-dir for its runs")
    if _looks_like_run(folder):
        return
    runs = sorted(path for path in folder.iterdir() if path.is_dir() and _looks_like_run(path))
    if runs:
        newest = next((path for path in runs if path.name == "latest"), runs[-1])
        raise _refused(
            "the folder holds runs and is none itself", folder, f"python -m popdist.report {newest}"
        )
    raise _refused(
        "the folder holds nothing of a run",
        folder,
        "start the job with poprun --log-dir DIR, and name DIR/latest here",
    )


def _refused(what: str, folder: Path, hint: str) -> LaunchError:
    return LaunchError(
        "PD140",
        what,
        value=str(folder),
        accepted="a folder that poprun --log-dir has made, with job.json, metrics.*.jsonl or "
        "instance.*.out in it",
        hint=hint,
    )


def _looks_like_run(folder: Path) -> bool:
    return any(
        path.name == "job.json" or _METRICS.fullmatch(path.name) or _OUTPUT.fullmatch(path.name)
        for path in folder.iterdir()
    )


def _newest_attempt(folder: Path) -> Path:
    """The folder of the last start of the job; restarts have their own folders."""
    found = [
        path
        for path in folder.glob("restart.*")
        if path.is_dir() and path.name[8:].isdecimal() and _looks_like_run(path)
    ]
    return max(found, key=lambda path: int(path.name[8:]), default=folder)


def _result(folder: Path, gaps: list[str]) -> dict[str, Any]:
    path = folder / "job.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if isinstance(result, dict) and isinstance(result.get("instances"), list):
            return _sound(result, gaps)
        why = "does not describe a job"
    except FileNotFoundError:
        why = "is missing: the launcher was killed, or the job still runs"
    except (OSError, ValueError, RecursionError) as error:
        why = f"cannot be read ({error})"
    gaps.append(f"job.json {why}; how the job went is known only as far as the instances noted it")
    return {}


def _sound(result: dict[str, Any], gaps: list[str]) -> dict[str, Any]:
    """The fields with the types of `popdist.poprun.output.result_json.FIELDS`."""
    bad = [name for name, types in _TYPES.items() if not isinstance(result.get(name), types)]
    sound = {name: value for name, value in result.items() if name not in bad}
    sound["instances"] = [one for one in result["instances"] if _is_instance(one)]
    sound["attempts"] = [one for one in sound.get("attempts", []) if isinstance(one, dict)]
    if len(sound["instances"]) < len(result["instances"]):
        bad.append("instances")
    if bad:
        gaps.append(f"job.json is damaged; these are left out: {', '.join(bad)}")
    return sound


def _is_instance(one: object) -> bool:
    counts = [one.get(name) for name in _COUNTS] if isinstance(one, dict) else [None]
    return all(isinstance(count, int) and 0 <= count < _MOST for count in counts)


def _metrics(folder: Path, run: Run) -> int:
    damaged = 0
    for path in folder.iterdir():
        found = _METRICS.fullmatch(path.name)
        if not found:
            continue
        if not path.is_file():
            damaged += 1
            continue
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            line = _line(text)
            if line is None:
                damaged += 1
            else:
                kind = run.steps if line["kind"] == "step" else run.exchanges
                kind.setdefault(int(found[1]), []).append(line)
    return damaged


def _line(text: str) -> Line | None:
    """One complete line of metrics; None for other lines."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or line.get("kind") not in ("step", "exchange"):
        return None
    needed = [line.get(name) for name in ("time", "count", "seconds")]
    given = [line.get(name, 0) for name in ("loss", "samples", "waited", "memory")]
    if not all(isinstance(one, int | float) for one in (*needed, *given)):
        return None
    sane = all(0 <= one < _MOST for one in (*needed, *given[1:]))
    return line if sane and line["count"] >= 1 else None


def _trace(run: Run, given: Path | None) -> list[Line]:
    named = run.result.get("timeline")
    places = [given] if given else [Path(str(named))] if named else []
    # A folder that was copied from elsewhere has its trace beside it, if anywhere.
    places += [run.folder / place.name for place in places if not given]
    places += [] if given else [run.folder / "timeline.json"]
    for path in places:
        if path.is_file():
            break
    else:
        if given:
            raise _refused("the timeline does not exist", given, "leave --timeline away")
        return []
    if path.stat().st_size > _LARGEST_TRACE:
        run.gaps.append(f"{path} is left out: it has more than {_LARGEST_TRACE >> 20} MiB")
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        whole = json.loads(text)
        events = whole.get("traceEvents", []) if isinstance(whole, dict) else whole
        return [event for event in events if isinstance(event, dict)]
    except (ValueError, TypeError, RecursionError):
        run.gaps.append(f"{path} is cut off; what is whole in it is shown")
        start = text.find("[")
        return read_events(text[start:]) if start >= 0 else []


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines[-_TAIL_LINES:]


def _tell_gaps(run: Run) -> None:
    if not run.steps:
        run.gaps.append(
            "no instance noted losses or samples; call popdist.metrics.record(loss=..., "
            "samples=...) once a step"
        )
    elif len(run.steps) < len(run.instances):
        run.gaps.append(f"no losses from instances {_missing(run.instances, run.steps)}")
    if not run.exchanges:
        run.gaps.append(
            "no instance noted how long it waited for exchanges; popdist's exchange does, in "
            "PyTorch and ONNX jobs of several instances"
        )
    if not run.trace:
        run.gaps.append("there is no timeline; start the job with --timeline FILE to have one")


def _missing(instances: list[int], there: dict[int, list[Line]]) -> str:
    gone = [str(index) for index in instances if index not in there]
    most = 12
    return ", ".join(gone[:most]) + (f" and {len(gone) - most} more" if len(gone) > most else "")
