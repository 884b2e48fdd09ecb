"""The job that a command line describes: frozen, complete, and checked before the start."""

from __future__ import annotations

import os

from popdist.errors import LaunchError, UsageError
from popdist.poprun.options.requests import Binding, Display, Limits, Partition, Reach
from popdist.poprun.options.table import OPTIONS
from popdist.poprun.plan.mpi_arguments import (
    Variables,
    check_instance,
    read_variables,
    split_instance_args,
    split_words,
    take_output_options,
    take_variables,
)
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from popdist.poprun.machines.hosts import Host
    from popdist.poprun.machines.slurm import Allocation
    from popdist.poprun.options.parser import CommandLine

HOSTFILE_VARIABLES = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
"""The variables that name mpirun's default host file; Kubeflow's operator sets one in its pods."""
_LONGEST_HOSTFILE = 1 << 24
_FIRST_LINE = 256  # bytes that Linux reads of a script's first line
_SHELL_WORDS = {"alias", "cd", "eval", "export", "set", "source", "ulimit", "umask", "unset"}
_MOST_FOR_ONE_GUARD = 128  # each takes six descriptors, of which a process usually has 1024


class Job(Record):
    """The program to start, with all settings.

    Attributes:
        program: The program as an executable path, and its arguments.
        num_instances: The number of processes.
        num_replicas: Replicas over all instances.
        num_ilds: Link domains.
        ipus_per_replica: Devices of one replica.
        hosts: The hosts of the instances; empty for this machine alone.
        allocation: Slurm's allocation; None outside of an allocation.
        offline: Whether no devices are reserved.
        ipu_version: Version of the IPUs that programs are told to be here, or None.
        executable_cache_path: Folder for compiled programs.
        variables: The variables that the user sets for instances.
        mpirun: The mpirun that the user named, or None.
        mpi_tcp: Whether MPI may use TCP on one machine; None where shared memory decides.
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
        given: Names of the options that the user set; other options have their defaults.
        reach: How other hosts are reached.
        binding: How instances are bound on a host.
        partition: The wanted partition of devices.
        limits: How the job may end.
        display: Settings of output and logs.
        tf_config: Whether instances get TF_CONFIG.
        sdk_names: Whether the names of the SDK's modules can be imported: empty, ``auto``, or
            ``tf1`` where ``tensorflow`` is to be TensorFlow 1's interface.
        ddp: Whose exchange DistributedDataParallel uses: ``torch`` or ``popdist``.
        allow_run_as_root: Whether root may run it.
        compare_folder: Where its programs record what they train; None where nothing is compared.
        compare_replicas: Replicas of the job with which this program alone is compared; else 1.
    """

    program: tuple[str, ...]
    num_instances: int
    num_replicas: int
    variables: Variables = Variables()
    instance_args: Mapping[int, tuple[str, ...]] = {}
    num_ilds: int = 1
    ipus_per_replica: int = 1
    hosts: tuple[Host, ...] = ()
    allocation: Allocation | None = None
    offline: bool = False
    ipu_version: int | None = None
    executable_cache_path: str | None = None
    mpirun: str | None = None
    mpi_tcp: bool | None = None
    global_args: tuple[str, ...] = ()
    local_args: tuple[str, ...] = ()
    tag_output: bool = False
    output_folder: str | None = None
    only_output_from: int | None = None
    print_topology: bool = False
    terminal_size: str = ""
    dry_run: bool = False
    verbosity: int = 0
    given: frozenset[str] = frozenset()
    reach: Reach = Reach()
    binding: Binding = Binding()
    partition: Partition = Partition()
    limits: Limits = Limits()
    display: Display = Display()
    tf_config: bool = False
    sdk_names: str = ""
    ddp: str = "torch"
    allow_run_as_root: bool = True
    compare_folder: str | None = None
    compare_replicas: int = 1

    @property
    def is_local(self) -> bool:
        """Whether every instance runs on this machine."""
        return all(host.is_local for host in self.hosts)

    @property
    def has_one_guard(self) -> bool:
        """Whether one guard watches all instances, which mpirun starts without words of the user.

        Among such words may be a program around the instance's, whose effects only its descendants
        have.
        """
        wrapped = self.local_args or any(self.instance_args.values())
        return self.is_local and not wrapped and self.num_instances <= _MOST_FOR_ONE_GUARD


def make_job(line: CommandLine, environ: Mapping[str, str]) -> Job:
    """Checks a command line and completes it with defaults.

    Raises:
        UsageError: Options contradict each other or are malformed.
        LaunchError: The program cannot be started.
    """
    values: Mapping[str, Any] = line.values
    hosts = _hosts(line, environ)
    instances = values["num-instances"] or max(1, len(hosts))
    allocation = None
    if "SLURM_JOB_ID" in environ:
        from popdist.poprun.machines.slurm import default_instances, read_allocation, take_hosts

        allocation = read_allocation(environ)
        if allocation is not None:
            if values["num-instances"] is None and not hosts:
                instances = default_instances(allocation, values["num-replicas"])
            hosts = take_hosts(allocation, hosts, instances)
    replicas = values["num-replicas"] or instances
    if replicas < instances:
        raise UsageError(
            "PD101",
            "there are fewer replicas than instances, and every instance has at least one",
            value=f"--num-replicas {replicas} --num-instances {instances}",
            hint=f"--num-replicas {instances}, or leave it out for one replica per instance",
        )
    binding = Binding.of(values)
    binding.check()
    only = values["only-output-from-instance"]
    if only is not None:
        check_instance("--only-output-from-instance", only, instances)
    check_domains(values["num-ilds"], instances)
    variables, local_args, instance_args = _variables(values, instances, environ)
    global_args, tag, folder = take_output_options(
        split_words("--mpi-global-args", values["mpi-global-args"])
    )
    return Job(
        program=find_program(
            line.program,
            environ,
            # On other machines and in an image, the program is found there.
            local=all(host.is_local for host in hosts) and values["emit"] is None,
        ),
        num_instances=instances,
        num_replicas=replicas,
        num_ilds=values["num-ilds"],
        ipus_per_replica=values["ipus-per-replica"],
        hosts=hosts,
        allocation=allocation,
        offline=values["offline-mode"],
        ipu_version=values["ipu-version"],
        executable_cache_path=values["executable-cache-path"],
        variables=variables,
        mpirun=values["mpirun"],
        mpi_tcp=values["mpi-tcp"],
        global_args=global_args,
        local_args=local_args,
        instance_args=instance_args,
        tag_output=values["tag-output"] or tag,
        output_folder=values["output-filename"] or folder,
        only_output_from=only,
        print_topology=values["print-topology"],
        terminal_size=_terminal_size(),
        dry_run=values["dry-run"],
        verbosity=min(2, values["verbose"] + 2 * values["vv"]),
        given=line.given,
        reach=Reach.of(values),
        binding=binding,
        partition=Partition.of(values),
        limits=Limits.of(values),
        display=Display.of(values),
        tf_config=values["tf-config"],
        sdk_names=_sdk_names(values["sdk-names"]),
        ddp=values["ddp"],
        allow_run_as_root=values["allow-run-as-root"],
    )


def check_domains(num_ilds: int, num_instances: int) -> None:
    """Checks that instances can be divided over the link domains.

    Raises:
        UsageError: The division is not even; every domain has the same number of instances.
    """
    if num_instances % num_ilds:
        raise UsageError(
            "PD101",
            "the instances cannot be divided evenly over the link domains",
            value=f"--num-ilds {num_ilds} --num-instances {num_instances}",
            accepted="a multiple of --num-ilds as --num-instances",
            hint=f"--num-instances {num_ilds * -(-num_instances // num_ilds)}",
        )


def find_program(
    words: tuple[str, ...], environ: Mapping[str, str], *, local: bool
) -> tuple[str, ...]:
    """Finds the program as mpirun would: on PATH, in the working directory, or by path.

    With ``local`` False the words are unchanged, and each host finds the program.

    Raises:
        UsageError: No program was named.
        LaunchError: The program was not found, or is not executable.
    """
    if not words or not words[0]:
        raise UsageError(
            "PD102",
            "no program was named",
            accepted="poprun [options] program [program args]",
            hint="poprun --num-instances 2 python3 train.py",
        )
    name = words[0]
    if not local:  # a guard reports a missing program on its host
        return words
    # A program in the working directory needs no ./ in front, as with mpirun.
    folders = [""] if "/" in name else [*environ.get("PATH", os.defpath).split(os.pathsep), "."]
    found = [os.path.join(folder, name) if folder else name for folder in folders]
    files = [path for path in found if os.path.isfile(path)]
    for path in files:
        if os.access(path, os.X_OK):
            _require_interpreter(name, path)
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
        hint=_about_missing(name),
    )


def _require_interpreter(name: str, path: str) -> None:
    """Refuses a script whose first line names no interpreter, or one that does not exist.

    The system says of the latter that the script itself does not exist, and a shell would read a
    Python program as its own commands.
    """
    try:
        with open(path, "rb") as file:
            line = file.readline(_FIRST_LINE)
    except OSError:
        return  # a program that may be executed, and not read
    words = line[2:].split() if line.startswith(b"#!") else []
    if words and (line.endswith(b"\r\n") or not os.path.exists(words[0])):
        ends = line.endswith(b"\r\n")
        raise LaunchError(
            "PD102",
            "the first line of the program ends as lines of Windows do"
            if ends
            else "the interpreter that the program's first line names does not exist",
            value=f"{name}: {line.strip().decode(errors='replace')}",
            hint=f"sed -i 's/\\r$//' {name}" if ends else "correct the line that begins with #!",
        )
    if not words and name.endswith(".py"):
        raise LaunchError(
            "PD102",
            "the program is a Python file without a line that names its interpreter",
            value=name,
            hint=f"python3 {name} ...",
        )


def _about_missing(name: str) -> str:
    """The fix for a program that was not found."""
    if " " in name:
        return f"write the program and its arguments without quotes: {name}"
    if name.endswith(".py"):
        return f"check the path of {name}, and write options before it: poprun -np 2 python3 {name}"
    if name.partition("=")[0].isidentifier() and "=" in name:
        return f"a variable of the program's environment needs an option: -x {name}"
    if name in _SHELL_WORDS:
        return f"{name} is a command of the shell: poprun [options] bash -c '{name} ...'"
    if name in {"help", "version"}:
        return f"poprun --{name}"
    return "write options of poprun before the program, each with its value; check the name"


def _hosts(line: CommandLine, environ: Mapping[str, str]) -> tuple[Host, ...]:
    text: Any = line.values["host"]
    path: Any = line.values["hostfile"]
    if text is None and path is None and line.values["emit"] is None:
        path = next((environ[name] for name in HOSTFILE_VARIABLES if environ.get(name)), None)
    if text is None and path is None:
        return ()
    from popdist.poprun.machines.host_list import parse_hostfile, parse_hosts

    if text is not None:
        return parse_hosts(text)
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read(_LONGEST_HOSTFILE + 1)
        if len(content) > _LONGEST_HOSTFILE:
            raise OSError("it is larger than 16 MiB")  # noqa: TRY301 - as open() says it
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "PD103", f"the host file cannot be read: {error}", value=path, accepted="a text file"
        ) from None
    return parse_hostfile(content, path)


def _variables(
    values: Mapping[str, Any], instances: int, environ: Mapping[str, str]
) -> tuple[Variables, tuple[str, ...], dict[int, tuple[str, ...]]]:
    """The user's variables from all options that can set variables, and the remaining words."""
    option = "--mpi-local-args"
    local, common = take_variables(option, split_words(option, values["mpi-local-args"]))
    option = "--instance-mpi-local-args"
    rest, single = {}, {}
    for index, words in split_instance_args(values["instance-mpi-local-args"], instances).items():
        rest[index], single[index] = take_variables(option, words)
    typed = read_variables(values["env"], environ)
    return Variables(typed.forwarded, {**typed.common, **common}, single), local, rest


def _terminal_size() -> str:
    for fd in (2, 1, 0):
        try:
            columns, rows = os.get_terminal_size(fd)
        except OSError:
            continue
        if columns and rows:
            return f"{columns}x{rows}"
    return ""


def check_alone(environ: Mapping[str, str]) -> None:
    """Checks that the launcher is not itself a program of a job, which mpirun refuses.

    Raises:
        LaunchError: The launcher is a program of a job.
    """
    index = environ.get("OMPI_COMM_WORLD_RANK")
    if index is not None:
        raise LaunchError(
            "PD116",
            "poprun was started inside a job, as one of its programs",
            value=f"instance {index} of {environ.get('OMPI_COMM_WORLD_SIZE', 'several')}",
            accepted="poprun (or popdist.run) outside of mpirun, poprun and popdist.run",
            hint="name the program itself in the outer command, with all instances it needs",
        )


def check_user(job: Job, user: int) -> None:
    """Checks that a user may run the job; user 0 is root.

    Raises:
        LaunchError: The user is root, and ``--allow-run-as-root=no`` was given.
    """
    if user == 0 and not job.allow_run_as_root:
        raise LaunchError(
            "PD107",
            "this is root, and the job may not run as root",
            value="--allow-run-as-root=no",
            accepted="another user, or --allow-run-as-root=yes",
            hint="run poprun as a user of your own",
        )


def remarks(job: Job, user: int) -> list[str]:
    """The lines that ``-v`` prints about a job."""
    found = ["running as root, and so are the instances"] if user == 0 else []
    found += [
        f"--{option.name} is noted, and has no effect on hosts, which have no IPUs and no V-IPU"
        for option in OPTIONS
        if option.ipu_only and option.name in job.given
    ]
    return found


def _sdk_names(value: object) -> str:
    return value if isinstance(value, str) else "auto" if value else ""
