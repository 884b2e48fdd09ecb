"""The job that a command line asks for: frozen, complete, and checked before anything starts."""

from __future__ import annotations

import os

from popdist.errors import LaunchError, UsageError
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from popdist.poprun.hosts import Host
    from popdist.poprun.parser import CommandLine

# Options of mpirun about output that the guards act on, because they carry the output.
_TAG = ("--tag-output", "-tag-output")
_FILES = ("--output-filename", "-output-filename")


class Job(Record):
    """What is to be started.

    Attributes:
        program: The program, as a path that can be executed, and its arguments.
        num_instances: Processes.
        num_replicas: Replicas over all instances.
        ipus_per_replica: Devices of one replica.
        hosts: Where instances may run; empty for this machine alone.
        offline: Whether devices are left alone.
        executable_cache_path: Folder for compiled programs.
        variables: Variables to forward: name to value, or to None for the launcher's own value.
        mpirun: The mpirun that the user named, or None.
        global_args: More words for mpirun.
        local_args: More words for mpirun in front of every instance's program.
        instance_args: The same for single instances, by index.
        tag_output: Whether lines are tagged with instance and stream.
        output_folder: Folder for each instance's output, or None.
        only_output_from: The one instance whose output is shown, or None for all.
        print_topology: Whether the table is printed.
        terminal_size: Size of the launcher's terminal, as <columns>x<rows>; empty without one.
        dry_run: Whether nothing is started.
        verbosity: 0, 1 (-v) or 2 (-vv).
    """

    program: tuple[str, ...]
    num_instances: int
    num_replicas: int
    variables: Mapping[str, str | None]
    instance_args: Mapping[int, tuple[str, ...]]
    ipus_per_replica: int = 1
    hosts: tuple[Host, ...] = ()
    offline: bool = False
    executable_cache_path: str | None = None
    mpirun: str | None = None
    global_args: tuple[str, ...] = ()
    local_args: tuple[str, ...] = ()
    tag_output: bool = False
    output_folder: str | None = None
    only_output_from: int | None = None
    print_topology: bool = False
    terminal_size: str = ""
    dry_run: bool = False
    verbosity: int = 0

    @property
    def is_local(self) -> bool:
        """Whether every instance runs on this machine."""
        return all(host.is_local for host in self.hosts)


def make_job(line: CommandLine, environ: Mapping[str, str]) -> Job:
    """Checks a command line and completes it.

    Args:
        line: The parsed command line.
        environ: The launcher's environment.

    Returns:
        The job.

    Raises:
        UsageError: Options contradict each other or are malformed.
        LaunchError: The program cannot be started.
    """
    values: Mapping[str, Any] = line.values
    hosts = _hosts(line)
    instances = values["num-instances"] or max(1, len(hosts))
    replicas = values["num-replicas"] or instances
    if replicas < instances:
        raise UsageError(
            "PD101",
            "there are fewer replicas than instances, and every instance has at least one",
            value=f"--num-replicas {replicas} --num-instances {instances}",
            hint=f"--num-replicas {instances}, or leave it out for one replica per instance",
        )
    only = values["only-output-from-instance"]
    if only is not None:
        _check_instance("--only-output-from-instance", only, instances)
    global_args, tag, folder = _take_output_options(
        _words("--mpi-global-args", values["mpi-global-args"])
    )
    return Job(
        program=_program(line.program, environ, local=all(host.is_local for host in hosts)),
        num_instances=instances,
        num_replicas=replicas,
        ipus_per_replica=values["ipus-per-replica"],
        hosts=hosts,
        offline=values["offline-mode"],
        executable_cache_path=values["executable-cache-path"],
        variables=_variables(values["env"], environ),
        mpirun=values["mpirun"],
        global_args=global_args,
        local_args=_words("--mpi-local-args", values["mpi-local-args"]),
        instance_args=_instance_args(values["instance-mpi-local-args"], instances),
        tag_output=values["tag-output"] or tag,
        output_folder=values["output-filename"] or folder,
        only_output_from=only,
        print_topology=values["print-topology"],
        terminal_size=_terminal_size(),
        dry_run=values["dry-run"],
        verbosity=min(2, values["verbose"] + 2 * values["vv"]),
    )


def _terminal_size() -> str:
    for fd in (2, 1, 0):
        try:
            columns, rows = os.get_terminal_size(fd)
        except OSError:
            continue
        if columns and rows:
            return f"{columns}x{rows}"
    return ""


def _hosts(line: CommandLine) -> tuple[Host, ...]:
    text: Any = line.values["host"]
    path: Any = line.values["hostfile"]
    if text is not None and path is not None:
        raise UsageError(
            "PD101",
            "--host and --hostfile exclude each other",
            value=f"--host {text} --hostfile {path}",
            accepted="one of the two",
        )
    if text is None and path is None:
        return ()
    from popdist.poprun.host_list import parse_hostfile, parse_hosts

    if text is not None:
        return parse_hosts(text)
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "PD103", f"the host file cannot be read: {error}", value=path, accepted="a text file"
        ) from None
    return parse_hostfile(content, path)


def _check_instance(option: str, index: int, instances: int) -> None:
    if index >= instances:
        raise UsageError(
            "PD101",
            f"{option} names an instance that the job does not have",
            value=index,
            accepted=f"0 to {instances - 1} with --num-instances {instances}",
        )


def _words(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Splits options for mpirun into words, as a shell would, without running one."""
    if not texts:
        return ()
    import shlex

    words: list[str] = []
    for text in texts:
        try:
            split = shlex.split(text)
            # Callers that build the command in a program leave quotes inside: '"-x A=B -x C=D"'.
            if len(split) == 1 and split[0].startswith("-") and " " in split[0]:
                split = shlex.split(split[0])
        except ValueError as error:
            raise UsageError(
                "PD100",
                f"the value of {option} has quotes that do not match: {error}",
                value=text,
                accepted="words as in a shell",
            ) from None
        if split and not split[0].startswith("-"):
            raise UsageError(
                "PD100",
                f"the value of {option} does not start with an option of mpirun, "
                "which would take it for the program",
                value=text,
                accepted="options of mpirun, such as '-x NAME=VALUE'",
                hint=f"{option}='-x {text.strip()}'" if "=" in split[0] else None,
            )
        words += split
    if ":" in words:
        raise UsageError(
            "PD100",
            f"{option} has a lone colon, which for mpirun starts another program",
            value=" ".join(texts),
        )
    return tuple(words)


def _take_output_options(words: tuple[str, ...]) -> tuple[tuple[str, ...], bool, str | None]:
    """Takes out the options of mpirun about output, which the guards carry out."""
    rest: list[str] = []
    tag, folder = False, None
    pending = iter(words)
    for word in pending:
        name, equals, attached = word.partition("=")
        if word in _TAG:
            tag = True
        elif name in _FILES:
            folder = attached if equals else next(pending, None)
            if not folder:
                raise UsageError(
                    "PD100", f"{name} in --mpi-global-args needs a directory", value=word
                )
        else:
            rest.append(word)
    return tuple(rest), tag, folder


def _instance_args(texts: Sequence[str], instances: int) -> dict[int, tuple[str, ...]]:
    option = "--instance-mpi-local-args"
    found: dict[int, tuple[str, ...]] = {}
    for text in texts:
        index_text, colon, rest = text.partition(":")
        if not (colon and index_text.isascii() and index_text.isdecimal()):
            raise UsageError(
                "PD100",
                f"the value of {option} has no instance before its colon",
                value=text,
                accepted="<index>:<options of mpirun>",
                hint=f'{option}="0:-x NAME=VALUE"',
            )
        index = int(index_text)
        _check_instance(option, index, instances)
        found[index] = found.get(index, ()) + _words(option, (rest,))
    return found


def _variables(texts: Sequence[str], environ: Mapping[str, str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.isascii() and name.isidentifier()):
            raise UsageError(
                "PD100",
                "-x does not name an environment variable",
                value=text,
                accepted="NAME or NAME=VALUE",
            )
        if not equals and name not in environ:
            raise UsageError(
                "PD100",
                "-x forwards a variable that is not set",
                value=name,
                accepted="a variable of this shell's environment, or NAME=VALUE",
                hint=f"export {name}=... first, or write -x {name}=VALUE",
            )
        found[name] = value if equals else None
    return found


def _program(words: tuple[str, ...], environ: Mapping[str, str], *, local: bool) -> tuple[str, ...]:
    if not words or not words[0]:
        raise UsageError(
            "PD102",
            "no program was named",
            accepted="poprun [options] program [program args]",
            hint="poprun --num-instances 2 python3 train.py",
        )
    name = words[0]
    if not local:  # it is the hosts' business; their guards report a program that is missing
        return words
    # A program in the working directory needs no ./ in front, as with mpirun.
    folders = [""] if "/" in name else [*environ.get("PATH", os.defpath).split(os.pathsep), "."]
    found = [os.path.join(folder, name) if folder else name for folder in folders]
    files = [path for path in found if os.path.isfile(path)]
    for path in files:
        if os.access(path, os.X_OK):
            return (path, *words[1:])
    if files:
        raise LaunchError(
            "PD102",
            "the program is a file that may not be executed",
            value=name,
            hint=f"python3 {name} ..." if name.endswith(".py") else f"chmod +x {files[0]}",
        )
    raise LaunchError(
        "PD102",
        "the program was not found",
        value=name,
        accepted="a program on PATH, in the working directory, or given by its path",
        hint="options of poprun go before the program, and each needs its value",
    )
