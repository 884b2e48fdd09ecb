"""The report on a failed job: which instance failed, on which host, how, and its last lines."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms

from popdist.poprun.output.hints import hint
from popdist.poprun.supervisor.outcome import (
    ENDED_UNHEARD,
    follows,
    name_instances,
    root_cause,
    was_leaving,
)
from popdist.poprun.supervisor.user_line import error_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.supervisor.outcome import Ending, InstanceRecord, Outcome

_TAIL_LINES = 4
_SEARCHED_LINES = 40
_STACK_LINES = 60
_MEMORY_WORDS = (
    "MemoryError",
    "std::bad_alloc",
    "DefaultCPUAllocator: can't allocate memory",
    "out of memory",
    "Cannot allocate memory",
    "OOM when allocating",
)


def failure_report(
    outcome: Outcome,
    instances: Sequence[Instance],
    logs: str | None = None,
    *,
    only: int | None = None,
    program: Sequence[str] = (),
) -> str:
    """The summary of a failed job, or an empty text.

    ``logs`` is the folder of kept logs; ``only`` is the instance whose output was printed, None for
    all. What was printed is not repeated. ``program`` is the command line of the program.
    """
    lines = []
    if outcome.unwritten:
        lines.append(
            f"{outcome.unwritten} bytes of output were lost: they could not be written to the "
            "standard output or error of poprun (no space left)"
        )
    if outcome.mpirun_was_stuck:
        lines.append("every program had ended well, but mpirun did not end, and was killed")
    if outcome.exit_code:
        lines += _failure(outcome, instances, logs, only, program)
        if outcome.needs_tcp:
            lines.append(
                "MPI found no way between two processes, as its TCP is off on one machine; hint: "
                "poprun --mpi-tcp=yes, which MPI_Comm_spawn and MPI_Comm_connect need"
            )
        lines.append(f"exit code {outcome.exit_code}")
    return "\n".join(f"poprun: {line}" for line in lines)


def headline(outcome: Outcome, instances: Sequence[Instance]) -> str:
    """The first line of the summary of a failed job."""
    return _failure(outcome, instances)[0]


def out_of_memory(one: InstanceRecord) -> str:
    """The evidence that an instance ran out of memory; empty without evidence."""
    if one.oom:
        return one.oom
    for line in reversed(_tail(one)[-_SEARCHED_LINES:]):
        if any(words in line for words in _MEMORY_WORDS):
            return f"it said: {line.strip()}"
    return ""


def _failure(
    outcome: Outcome,
    instances: Sequence[Instance],
    logs: str | None = None,
    only: int | None = None,
    program: Sequence[str] = (),
) -> list[str]:
    cause = root_cause(outcome)
    if outcome.interrupted:
        return _describe_interrupt(outcome)
    if outcome.ending is not None:
        return _describe_ending(outcome, outcome.ending, instances)
    if cause is not None:
        lines = _describe(cause, outcome, instances)
        known = hint("\n".join(_tail(cause)), program) if program else ""
        lines += [f"hint: {known}"] if known else []
        lines += _last_words(cause, printed=only in (None, cause.index))
        if logs:
            lines.append(f"its log: {logs}/instance.{cause.index}.err")
        return [*lines, "the other instances were ended"] if len(instances) > 1 else lines
    if outcome.diverged:
        return outcome.diverged
    return _describe_mpirun(outcome, instances)


def _describe_interrupt(outcome: Outcome) -> list[str]:
    lines = [f"interrupted by {_name(outcome.interrupted)}; every instance was ended"]
    return lines + _describe_killed(outcome)


def _describe_killed(outcome: Outcome) -> list[str]:
    killed = [one.index for one in outcome.instances.values() if one.signal == signal.SIGKILL]
    if killed:
        were = "were" if len(killed) > 1 else "was"
        return [f"{name_instances(killed)} did not end when asked to, and {were} killed"]
    return ["not everything ended when asked to, and mpirun was killed"] if outcome.forced else []


def _describe_ending(outcome: Outcome, ending: Ending, instances: Sequence[Instance]) -> list[str]:
    lines = [ending.text, *ending.lines]
    if ending.with_stacks:
        for one in sorted(outcome.instances.values(), key=lambda one: one.index):
            if not one.stacks:
                continue
            host = instances[one.index].host.name
            stack = one.stacks.splitlines()
            lines.append(f"instance {one.index} on {host} (rank {one.index}, PID {one.pid}):")
            lines += [f"  {line}" for line in stack[:_STACK_LINES]]
            if len(stack) > _STACK_LINES:
                lines.append(f"  ... {len(stack) - _STACK_LINES} more lines")
    return lines + (_describe_killed(outcome) if ending.kind != "host" else [])


def _describe(one: InstanceRecord, outcome: Outcome, instances: Sequence[Instance]) -> list[str]:
    host = instances[one.index].host.name
    how = f"was killed by {_name(one.signal)}" if one.signal else f"ended with exit code {one.code}"
    if one.asked and one is outcome.first_failure:
        how += " after a signal that asked it to end, which poprun did not send"
    if was_leaving(outcome, one):
        how = "failed first, by its own words, and was ended while it was exiting"
    evidence = out_of_memory(one)
    reason = f": out of memory ({evidence})" if evidence else ""
    lines = [f"instance {one.index} on {host} (rank {one.index}, PID {one.pid}) {how}{reason}"]
    if one.signal == signal.SIGKILL and not evidence:
        lines.append(
            "who sent it is not known; hint: the kernel does when memory is short (see 'dmesg' or "
            "the memory limit of the container or batch job)"
        )
    if follows(one):
        lines.append(_who_left(outcome))
    return lines


def _last_words(one: InstanceRecord, *, printed: bool) -> list[str]:
    """The user's own line, where a printed error ends elsewhere; what was not printed, whole."""
    error = error_of("\n".join(_tail(one)))
    if printed:
        return [f"  at {error.place}"] if error.is_inside else []
    if error.words:
        code = f": {error.code}" if error.code else ""
        place = [f"  at {error.place}{code}"] if error.place else []
        return [*(f"  {line}" for line in error.words.splitlines()), *place]
    tail = _tail(one)[-_TAIL_LINES:]
    return ["the end of its standard error:", *(f"  {line}" for line in tail)] if tail else []


def _who_left(outcome: Outcome) -> str:
    left = [other.index for other in outcome.instances.values() if other.ended and not other.failed]
    who = f"{name_instances(left)} ended with exit code 0" if left else "why is not known"
    return f"it reported that another instance had left; {who}"


def _tail(one: InstanceRecord) -> list[str]:
    return one.tail.decode(errors="replace").splitlines()


def _describe_mpirun(outcome: Outcome, instances: Sequence[Instance]) -> list[str]:
    code = outcome.mpirun_code or 0
    if code < 0:
        return [f"mpirun was killed by {_name(-code)}; every instance was ended"]
    lost = outcome.first_lost
    if lost is not None:
        host = instances[lost.index].host.name
        if outcome.guard_died:
            why = "was ended because its guard was killed"
        else:
            why = "lost the proxy of its guard, which was killed"
        return [f"instance {lost.index} on {host} {why}", "every instance was ended"]
    silent = [one.index for one in outcome.running()]
    if outcome.lost_proxy:
        hosts = sorted({instances[index].host.name for index in silent})
        who = f"{name_instances(silent)} on {', '.join(hosts)} lost guard and proxy"
        return [f"{who}, which were killed", "every instance was ended"]
    hosts = _silent_hosts(outcome, instances)
    if len(hosts) == 1:  # of several only mpirun knows which, and whether one was lost at all
        who = name_instances(silent)
        return [f"host {hosts[0]} was lost, with {who}; {ENDED_UNHEARD}"]
    left = [one.index for one in outcome.instances.values() if one.ended and not one.failed]
    asked = [one.index for one in outcome.instances.values() if one.asked]
    if left and asked:
        who = f"{name_instances(left)} ended with exit code 0"
        return [f"{who} while the others were in the midst of MPI, so mpirun ended the job"]
    lines = [f"mpirun ended with exit code {code}"]
    if silent:
        why = ": a guard was killed" if outcome.guard_died else ""
        lines.append(f"no word about an end came from {name_instances(silent)}{why}")
    return lines


def _silent_hosts(outcome: Outcome, instances: Sequence[Instance]) -> list[str]:
    """Other hosts whose instances all started, with no reported end of any instance."""
    members: dict[str, list[int]] = {}
    for one in instances:
        if not one.host.is_local:
            members.setdefault(one.host.name, []).append(one.index)
    silent = {one.index for one in outcome.running()}
    return [host for host, indices in members.items() if silent.issuperset(indices)]


def _name(number: int) -> str:
    from signal import Signals

    try:
        return f"signal {number} ({Signals(number).name})"
    except ValueError:
        return f"signal {number}"
