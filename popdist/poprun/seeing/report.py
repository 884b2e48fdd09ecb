"""Says in words how a job failed: which instance, where, how, and its last lines."""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.supervision.outcome import InstanceRecord, Outcome

_TAIL_LINES = 12


def failure_report(outcome: Outcome, instances: Sequence[Instance]) -> str:
    """The summary of a job that did not end well.

    Args:
        outcome: How it ended.
        instances: Its placed instances.

    Returns:
        The lines, or an empty text where all is well.
    """
    if outcome.exit_code == 0:
        return ""
    lines: list[str] = []
    first = outcome.first_failure
    if outcome.interrupted:
        lines.append(f"interrupted by {_name(outcome.interrupted)}; every instance was ended")
        killed = [one.index for one in outcome.instances.values() if one.signal == signal.SIGKILL]
        if outcome.forced or killed:
            lines.append(f"{_instances(killed)} did not end when asked to, and was killed")
    elif first is not None:
        lines += _describe(first, instances)
    else:
        lines += _describe_mpirun(outcome, instances)
    lines.append(f"exit code {outcome.exit_code}")
    return "\n".join(f"poprun: {line}" for line in lines)


def _describe(one: InstanceRecord, instances: Sequence[Instance]) -> list[str]:
    host = instances[one.index].host.name
    how = f"was killed by {_name(one.signal)}" if one.signal else f"ended with exit code {one.code}"
    lines = [f"instance {one.index} on {host} (PID {one.pid}) {how}"]
    if one.signal == signal.SIGKILL:
        lines.append(
            "hint: nothing in this job sends SIGKILL first; most often the kernel does, when "
            "memory is short (see 'dmesg' or the memory limit of the container or batch job)"
        )
    tail = one.tail.decode(errors="replace").splitlines()[-_TAIL_LINES:]
    if tail and len(instances) > 1:
        lines.append("the end of its standard error:")
        lines += [f"  {line}" for line in tail]
    if len(instances) > 1:
        lines.append("the other instances were ended")
    return lines


def _describe_mpirun(outcome: Outcome, instances: Sequence[Instance]) -> list[str]:
    code = outcome.mpirun_code or 0
    if code < 0:
        return [f"mpirun was killed by {_name(-code)}; every instance was ended"]
    lost = outcome.first_lost
    if lost is not None:
        host = instances[lost.index].host.name
        lines = [f"instance {lost.index} on {host} lost its guard's front, which was killed"]
        return [*lines, "every instance was ended"]
    silent = [one.index for one in outcome.running()]
    lines = [f"mpirun ended with exit code {code}"]
    if silent:
        lines.append(f"no word about its end came from {_instances(silent)}: a guard was killed")
    return lines


def _instances(indices: Sequence[int]) -> str:
    return "instance " + ", ".join(str(index) for index in sorted(indices)) if indices else "a part"


def _name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
