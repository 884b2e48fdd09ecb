"""mpirun's command, on a command line or in a file for large jobs, with the guards' settings."""

from __future__ import annotations

import os

from popdist.errors import LaunchError
from popdist.poprun.protocol.guard_argv import SET, packed_variables, packed_word, plain_words
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance

# The characters that every Open MPI reads from a file of contexts; words are split at blanks.
_HARMLESS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+@%-^")
_LONGEST_LINE = 1020
"""Open MPI 5 exits without a message at a 1 KiB line; Open MPI 4 splits a 16 KiB line in two."""
# Open files, as measured with Open MPI 4: of mpirun for each instance that it starts, of the guard.
_FILES_TO_START = 32
_FILES_OF_MPIRUN = 4
_FILES_OF_GUARD = 6
_POINTER = 8
_LONGEST_WORD = 1 << 17
"""Linux starts no program with a longer word (32 pages), whatever the total limit is."""
_PROGRESS_SECONDS = 1
"""Seconds between the guards' progress reports while a status line is shown."""
_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Terminal colours that are readable on dark and light backgrounds; red is for failures."""


class Run(Record):
    """One start of a job.

    Attributes:
        channel: A guard's connection to the launcher, ``pipe=<path>`` or ``token=<secret>``; None
            where one guard watches all instances.
        fronts: The folder in which the instances' fronts find that guard, or None.
        session: A folder for mpirun's own files. In the default folder, files of a killed mpirun
            stop a later mpirun with the same process number (seen with Open MPI 5).
        keyboard: The pipe with the launcher's standard input; None where mpirun passes it on.
        logs: A folder for the output of each instance, or None.
        timeline: A folder for Horovod's timelines, or None.
        colored: Whether tags are coloured.
        restart: How often the job was started before.
        signals: The signals that are passed on to programs.
        has_groups: Whether instances get control groups.
    """

    channel: str | None
    session: str
    fronts: str | None = None
    keyboard: str | None = None
    logs: str | None = None
    timeline: str | None = None
    colored: bool = False
    restart: int = 0
    signals: tuple[int, ...] = ()
    has_groups: bool = False

    @property
    def name(self) -> str:
        """The name of this start, which no other job has: that of its folder."""
        return os.path.basename(os.path.dirname(self.session))


class Context(Record):
    """One application context: one instance.

    Attributes:
        options: Options for mpirun.
        start: The command that starts the guard.
        settings: The guard's settings, ``name=value`` each.
    """

    options: tuple[str, ...]
    start: tuple[str, ...]
    settings: tuple[str, ...]


class Command(Record):
    """The command that is executed.

    Attributes:
        head: The path of mpirun and its global options.
        contexts: One context per instance; none where a file has the contexts.
        program: The program and its arguments.
        environment: The whole environment of mpirun.
        has_tcp: Whether MPI may use TCP.
    """

    head: tuple[str, ...]
    contexts: tuple[Context, ...]
    program: tuple[str, ...]
    environment: Mapping[str, str]
    has_tcp: bool = True

    @property
    def arguments(self) -> tuple[str, ...]:
        """The path of mpirun and all arguments."""
        words = list(self.head)
        for index, context in enumerate(self.contexts):
            if index:
                words.append(":")
            words += (*context.options, *context.start)
            words += plain_words(context.settings, self.program)
        return tuple(words)

    @property
    def size(self) -> int:
        """Bytes that the kernel needs for the arguments."""
        program = sum(len(os.fsencode(word)) + _POINTER + 1 for word in self.program)
        return sum(
            program
            + sum(len(word) + _POINTER + 1 for word in (*one.options, *one.start, *one.settings))
            for one in self.contexts
        )


def needs_file(command: Command, room: int) -> bool:
    """Whether the command takes more than a quarter of ``room`` (bytes)."""
    return command.size > room // 4


def check_lengths(command: Command, room: int) -> None:
    """Checks that the kernel can start the command with ``room`` bytes.

    Raises:
        LaunchError: A word, a variable, or all of them together are too long.
    """
    words = [*command.arguments, *(f"{k}={v}" for k, v in command.environment.items())]
    sizes = [len(os.fsencode(word)) + 1 for word in words]
    if max(sizes) > _LONGEST_WORD:
        longest = words[sizes.index(max(sizes))]
        raise LaunchError(
            "PD105",
            "an argument or a variable is longer than the kernel accepts",
            value=f"{longest[:60]}... ({max(sizes)} bytes)",
            accepted=f"at most {_LONGEST_WORD} bytes each",
            hint="write it to a file, and name that",
        )
    total = sum(sizes) + _POINTER * len(sizes)
    if total > room:
        raise LaunchError(
            "PD105",
            "arguments and environment together are longer than the kernel accepts",
            value=f"{total} bytes",
            accepted=f"at most {room} bytes",
            hint="ulimit -s 65536, or a smaller environment",
        )


def check_open_files(instances: int, *, has_one_guard: bool) -> None:
    """Checks that mpirun and a guard can open their pipes to the instances on this machine.

    With too few, mpirun neither starts them nor ends.

    Args:
        instances: Those on this machine.
        has_one_guard: Whether one guard watches all of them.

    Raises:
        LaunchError: The limit of open files is too low.
    """
    import resource

    # The guard of the instances raises its own limit, as far as it may.
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_TO_START + _FILES_OF_MPIRUN * instances
    if has_one_guard and _within(needed, limit):
        limit, needed = most, _FILES_TO_START + _FILES_OF_GUARD * instances
    if not _within(needed, limit):
        raise LaunchError(
            "PD117",
            "the limit of open files is too low for this job",
            value=f"{limit} open files",
            accepted=f"{needed} or more, for {instances} instances on this machine",
            hint="ulimit -n 65536, or fewer instances",
        )


def _within(needed: int, limit: int) -> bool:
    return limit < 0 or needed <= limit  # -1 stands for no limit


def into_file(command: Command, path: str) -> tuple[Command, str]:
    """Moves the contexts to a file at ``path``; returns the new command and the file's content.

    Raises:
        LaunchError: A word is not possible in such a file.
    """
    settled = [_settle(context) for context in command.contexts]
    shared = set(settled[0][1]).intersection(*(settings for _, settings in settled[1:]))
    variables = packed_variables(sorted(shared), command.program)
    forwarded = tuple(word for name in variables for word in ("-x", name))
    lines = []
    for context, (options, settings) in zip(command.contexts, settled, strict=True):
        words = (*options, *forwarded, *context.start)
        own = packed_word(word for word in settings if word not in shared)
        line = " ".join((*words, own))
        if not all(map(_is_harmless, words)) or len(line) > _LONGEST_LINE:
            raise _refused(words)
        lines.append(line)
    environment = {**command.environment, **variables}
    return (
        Command((*command.head, "--app", path), (), (), environment, command.has_tcp),
        "\n".join([*lines, ""]),
    )


def _settle(context: Context) -> tuple[list[str], list[str]]:
    """Moves variables with a value from options to settings, as a file cannot hold every value."""
    options: list[str] = []
    settings = list(context.settings)
    for word in context.options:
        if options and options[-1] == "-x" and "=" in word:
            options.pop()
            settings.append(SET + word)
        else:
            options.append(word)
    return options, settings


def _is_harmless(word: str) -> bool:
    return bool(word) and _HARMLESS.issuperset(word)


def _refused(words: tuple[str, ...]) -> LaunchError:
    strange = [word for word in words if not _is_harmless(word)]
    return LaunchError(
        "PD105",
        "so many instances are described to mpirun in a file, in which this word cannot stand",
        value=strange[0] if strange else " ".join(words)[:200],
        accepted="words without blanks, quotes and '#', and few of them",
        hint="set variables with -x NAME=VALUE, which takes any value",
    )


def guard_settings(job: Job, one: Instance, run: Run, neighbours: int) -> list[str]:
    """The ``name=value`` words for a guard; ``neighbours`` counts the host's instances."""
    only = job.only_output_from
    shown = only is None or only == one.index
    settings = [f"index={one.index}", f"world={job.num_instances}"]
    settings += [*([run.channel] if run.channel else []), f"show={int(shown)}"]
    settings += _place_settings(job, one, neighbours)
    settings += _limit_settings(job, run)
    if run.signals:
        settings.append(f"signals={'+'.join(str(number) for number in run.signals)}")
    if job.terminal_size:
        settings.append(f"size={job.terminal_size}")
    if job.tag_output:
        settings.append("tag=1")
    if run.colored:
        settings.append(f"color={_COLORS[one.index % len(_COLORS)]}")
    if shown and not job.tag_output and (job.num_instances == 1 or only is not None):
        settings.append("eager=1")  # no other line can be broken by an unfinished one
    served = {"names": job.sdk_names, "ddp": "popdist" if job.ddp == "popdist" else ""}
    settings += [f"{name}={how}" for name, how in served.items() if how]
    if job.output_folder:
        settings.append(f"files={os.path.abspath(job.output_folder)}")
    if run.logs:
        settings.append(f"logs={run.logs}")
    if run.keyboard and one.index == 0:
        settings.append(f"stdin={run.keyboard}")
    return settings


def _limit_settings(job: Job, run: Run) -> list[str]:
    limits = job.limits
    settings = [f"grace={limits.grace_period:g}"]
    if limits.timeout or limits.stall_timeout:
        settings.append("stacks=1")
    if limits.longest_wait:
        settings.append(f"stall={limits.longest_wait:g}")
    if job.display.shows_status:
        settings.append(f"progress={_PROGRESS_SECONDS}")
    if job.num_instances > 1 or job.compare_folder:
        settings.append("watch=1")
    settings.append("daemons=1" if limits.allow_daemons else f"job={run.name}")
    if run.has_groups:
        settings.append(f"group={'asked' if limits.control_groups else 'default'}")
    if not job.is_local:
        settings.append(f"heartbeat={limits.host_timeout:g}")
    return settings


def _place_settings(job: Job, one: Instance, neighbours: int) -> list[str]:
    """The settings for `popdist.poprun.machines.numa.place_of` on the instance's host."""
    numa = int(job.binding.applies(neighbours))
    local = one.fields["local_instance_index"]
    settings = [f"neighbours={neighbours}", f"local={local}", f"numa={numa}"]
    if one.host.cpus is not None:
        settings.append(f"granted={one.host.cpus}")
    if one.cpus:
        settings.append(f"cpus={one.cpus}")
    return [*settings, *one.holds]


def timeline_file(folder: str, index: int) -> str:
    """The path of an instance's Horovod timeline."""
    return f"{folder}/timeline.{index}.json"
