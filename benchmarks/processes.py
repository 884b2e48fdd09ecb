"""Times whole commands: fresh processes, taking turns."""

from __future__ import annotations

import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ranks import environment
from benchmarks.sampling import MeasurementError, Missing, Samples, interleave

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TIMEOUT = 120.0


def time_commands(
    commands: Mapping[str, Sequence[str] | Missing], repetitions: int
) -> dict[str, Samples | Missing]:
    """Times commands from start to end.

    Each runs once beforehand, so that files are cached and byte code is compiled.

    Args:
        commands: Argument lists by name, or why there is none.
        repetitions: Samples of each.

    Returns:
        The samples by name; for a command that does not work, why not.
    """
    env = environment()
    gaps: dict[str, Missing] = {}
    contenders = {}
    for name, command in commands.items():
        if isinstance(command, Missing):
            gaps[name] = command
            continue
        try:
            time_command(command, env)
        except MeasurementError as error:
            gaps[name] = Missing(str(error))
        else:
            contenders[name] = partial(time_command, command, env)
    seconds = interleave(contenders, repetitions)
    return {
        name: gaps[name] if name in gaps else Samples(tuple(seconds[name])) for name in commands
    }


def time_command(
    command: Sequence[str], env: Mapping[str, str], timeout: float = _TIMEOUT
) -> float:
    """Runs a command once.

    Args:
        command: Its argument list.
        env: Its whole environment.
        timeout: Seconds after which it is killed.

    Returns:
        Seconds from its start to its end.

    Raises:
        MeasurementError: It could not be started, failed, or did not end.
    """
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementError(f"{command[0]}: {error}") from None
    seconds = time.perf_counter() - start
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise MeasurementError(f"exit code {done.returncode}: {last[0]}")
    return seconds
