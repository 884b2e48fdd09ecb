"""What starting a job through poprun costs beyond mpirun, and how soon its help appears."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.machine import Clock
from benchmarks.processes import time_command, time_commands
from benchmarks.programs import beside_python, find_poprun
from benchmarks.ranks import environment, launch_command
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import MeasurementError, Missing, Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

LAUNCH_AIM = Aim(sentence="at most 45 ms more than mpirun", of="difference", at_most=45.0)
HELP_AIM = Aim(sentence="at most 60 ms more than bare Python", of="difference", at_most=60.0)

MANY_AIM = Aim(sentence="at most 0.6 s", of="value", at_most=600.0)
OUTPUT_AIM = Aim(sentence="at most 1.2 times mpirun's processor time", of="ratio", at_most=1.2)

_CLOCK = Path(__file__).with_name("launch_clock.py")
_INSTANCES = 2
_MANY = 64
_PATIENCE = 20.0


def measure_launch(effort: Effort) -> Iterator[Row]:
    """Starts two instances of a program that does nothing.

    Args:
        effort: How many times.

    Yields:
        poprun against mpirun, torchrun and horovodrun.
    """
    groups: tuple[tuple[dict[str, list[str] | Missing], int], ...] = (
        ({"mpirun": _launch("mpirun", "true")}, effort.choose(full=25, quick=5)),
        (_slow_launchers(), effort.choose(full=9, quick=2)),
    )
    for peers, repetitions in groups:
        times = time_commands({"poprun": _launch("poprun", "true"), **peers}, repetitions)
        for peer in peers:
            yield compare(
                f"poprun {_INSTANCES} x true",
                times["poprun"],
                unit="ms",
                peer=peer,
                against=times[peer],
                aim=LAUNCH_AIM if peer == "mpirun" else None,
                note=_form(),
                parameters={"instances": _INSTANCES},
            )


def _slow_launchers() -> dict[str, list[str] | Missing]:
    """Those that take seconds, because they import frameworks; they take turns among themselves."""
    arguments = {
        # Standalone: a port of its own choice, where the default port may be another job's.
        "torchrun": ["--standalone", f"--nproc-per-node={_INSTANCES}", "--no-python", "true"],
        "horovodrun": ["-np", str(_INSTANCES), "true"],
    }
    found = {name: beside_python(name) for name in arguments}
    return {
        name: [path, *arguments[name]] if path else Missing(f"{name} is not installed")
        for name, path in found.items()
    }


def measure_many(effort: Effort) -> Iterator[Row]:
    """Starts many instances of a program that does nothing.

    Args:
        effort: How many times.

    Yields:
        poprun against mpirun.
    """
    repetitions = effort.choose(full=15, quick=3)
    times: dict[str, Samples | Missing] = {}
    remarks = [_form()]
    for name in ("poprun", "mpirun"):
        times[name], endless = _time_patiently(name, repetitions)
        if endless:
            remarks.append(
                f"{name} did not end within {_PATIENCE:g} s in {endless} of {repetitions} runs"
            )
    yield compare(
        f"poprun {_MANY} x true",
        times["poprun"],
        unit="ms",
        peer="mpirun",
        against=times["mpirun"],
        aim=MANY_AIM,
        note="; ".join(filter(None, remarks)),
        parameters={"instances": _MANY},
    )


def _time_patiently(
    launcher: Literal["mpirun", "poprun"], repetitions: int
) -> tuple[Samples | Missing, int]:
    """Times a launch that may never end: Open MPI 4.1 loses the end of programs that are short."""
    command = _launch(launcher, "true", instances=_MANY)
    if isinstance(command, Missing):
        return command, 0
    runs = [_time_once(command) for _ in range(repetitions)]
    seconds = tuple(run for run in runs if isinstance(run, float))
    found = Samples(seconds) if seconds else Missing(str(runs[0]))
    return found, repetitions - len(seconds)


def _time_once(command: list[str]) -> float | str:
    """Seconds, or why there are none."""
    try:
        return time_command(command, environment(), _PATIENCE)
    except MeasurementError as error:
        return str(error)


def measure_phases(effort: Effort) -> Iterator[Row]:
    """Starts two instances of a program that does nothing, with a clock inside poprun.

    Args:
        effort: How many times.

    Yields:
        One row for each phase, in the order of time; together they are the launch.
    """
    times: dict[str, list[float]] = {}
    for _ in range(effort.choose(full=25, quick=4)):
        for phase, seconds in _phases().items():
            times.setdefault(phase, []).append(seconds)
    for place, (phase, taken) in enumerate(times.items()):
        yield compare(phase, Samples(tuple(taken)), unit="ms", parameters={"phase": place})


def _phases() -> dict[str, float]:
    """Seconds of each phase of one launch."""
    command = [sys.executable, "-I", "-S", str(_CLOCK), "-np", str(_INSTANCES), "true"]
    began = time.monotonic()
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    ended = time.monotonic()
    if done.returncode:
        raise MeasurementError(done.stderr.decode(errors="replace").strip())
    marks = [("", began), *json.loads(done.stdout.splitlines()[-1]), ("Python ends", ended)]
    return {name: moment - before for (_, before), (name, moment) in pairwise(marks)}


def measure_output(effort: Effort) -> Iterator[Row]:
    """Has two instances write lines of 100 bytes, and counts the processor time of all processes.

    The kernel's threads move what is written through terminals, so their time counts as well.

    Args:
        effort: How much.

    Yields:
        poprun against mpirun.
    """
    megabytes = effort.choose(full=500, quick=25)
    line = "x" * 99
    program = ["sh", "-c", f"yes {line} | head -c {megabytes}000000"]
    times: dict[Literal["mpirun", "poprun"], list[float]] = {"poprun": [], "mpirun": []}
    gaps: dict[str, Missing] = {}
    for _ in range(effort.choose(full=3, quick=1)):
        for name, seconds in times.items():
            command = _launch(name, *program)
            if isinstance(command, Missing):
                gaps[name] = command
                continue
            before = Clock.now()
            time_command(command, environment())
            seconds.append(Clock.now().own - before.own)
    found = {name: gaps.get(name) or Samples(tuple(seconds)) for name, seconds in times.items()}
    yield compare(
        f"{2 * megabytes} MB of output",
        found["poprun"],
        unit="s",
        peer="mpirun",
        against=found["mpirun"],
        aim=OUTPUT_AIM,
        note="processor time of all processes and the kernel, lines of 100 bytes, into /dev/null",
        parameters={"megabytes": 2 * megabytes},
    )


def measure_help(effort: Effort) -> Iterator[Row]:
    """Asks poprun for its help.

    Args:
        effort: How many times.

    Yields:
        One row, against a Python that does nothing.
    """
    poprun = find_poprun()
    missing = Missing("poprun is not installed")
    times = time_commands(
        {
            "poprun --help": missing if poprun is None else [*poprun, "--help"],
            "bare Python": [sys.executable, "-c", "pass"],
        },
        effort.choose(full=60, quick=10),
    )
    yield compare(
        "poprun --help",
        times["poprun --help"],
        unit="ms",
        peer="bare Python",
        against=times["bare Python"],
        aim=HELP_AIM,
        note=_form(),
    )


def _form() -> str:
    """Tells when the launcher was not run in the form that users run."""
    poprun = find_poprun()
    short = poprun is None or len(poprun) == 1
    return "" if short else "as python -m popdist.poprun: the console script is not installed"


def _launch(
    launcher: Literal["mpirun", "poprun"], *program: str, instances: int = _INSTANCES
) -> list[str] | Missing:
    try:
        return [*launch_command(launcher, instances), *program]
    except MeasurementError as error:
        return Missing(str(error))
