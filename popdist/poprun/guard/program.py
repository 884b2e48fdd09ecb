"""Starts an instance's program: its streams, its environment, its share of the cores."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import errno
import os
import sys

from popdist import program_status
from popdist.poprun.machines.numa import place_of
from popdist.poprun.protocol.guard_argv import CLUSTER, JOB, PRIVATE, SET
from popdist.poprun.protocol.processes import hear_of_parents_end, lead_group
from popdist.startup.environment import DDP, FRAMEWORKS, SDK_NAMES, STACKS, TENSORFLOW1, enable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

    from popdist.poprun.machines.cpus import Machine
    from popdist.poprun.protocol.control_group import Group

_MPIRUNS_OWN = (
    "OMPI_MCA_orte_local_tmpdir_base",
    "PRTE_MCA_prte_local_tmpdir_base",
    "POPRUN_NODES",  # the place and the key of nodes without ssh
)
"""Where mpirun alone keeps its files, in a job over several hosts. Its daemons tell programs of
another place, and MPI does not start with both."""

_STARTER, _ISOLATED = "OMPI_MCA_plm", "isolated"

NOT_FOUND = 127
"""The exit code where the program cannot be started, as in shells."""


class Program:
    """A program that has been started.

    Attributes:
        pid: Its process, which leads a group of its own.
        out: Where its standard output can be read.
        err: Where its standard error can be read.
        held: Descriptors that must stay open while it runs.
    """

    def __init__(self, pid: int, out: int, err: int, held: list[int]) -> None:
        self.pid = pid
        self.out = out
        self.err = err
        self.held = held


class Origin:
    """What the process that mpirun started for an instance hands on to the program.

    Attributes:
        environ: The environment.
        machine: What is known of this machine; None to look.
        group: The control group that the program enters, or why it cannot be made; None for none.
        needs_group: Whether the program does not start where it cannot enter its group.
    """

    machine: Machine | None = None
    group: Group | OSError | None = None
    needs_group = False

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ

    def enter(self) -> None:
        """Takes over what the program does not inherit.

        Raises:
            OSError: The control group cannot be entered.
        """
        try:
            if isinstance(self.group, OSError):
                raise self.group
            if self.group is not None:
                self.group.enter()
        except OSError:
            if self.needs_group:
                raise


def start_program(
    settings: Mapping[str, str],
    words: list[str],
    origin: Origin,
    *,
    resets: Iterable[int],
    status_fd: int | None,
) -> Program:
    """Starts the program in a process group of its own, which dies with the calling process.

    Args:
        settings: The guard's settings.
        words: The program and its arguments.
        origin: What the program gets from mpirun.
        resets: Signals that get their default action.
        status_fd: The file in which the program may state what it does, or None.

    Returns:
        The program.
    """
    out, out_end = _terminal_or_pipe(settings)
    err, err_end = os.pipe()
    keyboard = _open_keyboard(settings.get("stdin"))
    lost, held = _keep_devices(settings)
    pid = os.fork()
    if pid:
        lead_group(pid)
        for fd in (out_end, err_end, keyboard):
            if fd is not None:
                os.close(fd)
        return Program(pid, out, err, held)
    environ = origin.environ

    def prepare() -> None:
        lead_group(0)
        hear_of_parents_end()
        if lost:
            os.dup2(err_end, 2)
            raise OSError(lost)
        _connect(keyboard, out_end, err_end)
        for number in (*resets, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if status_fd is not None:
            environ[program_status.VARIABLE] = str(status_fd)
        for fd in (*held, *([] if status_fd is None else [status_fd])):
            os.set_inheritable(fd, True)  # noqa: FBT003 - positional only
        origin.enter()
        complete_environment(environ, settings)
        if problem := place_of(settings, known=origin.machine).enter(environ):
            os.write(2, f"poprun: {problem}\n".encode())

    _become(words, environ, prepare)
    raise AssertionError  # not reached


def _connect(keyboard: int | None, out: int, err: int) -> None:
    """Makes descriptors the standard streams of the calling process."""
    for fd, target in ((keyboard, 0), (out, 1), (err, 2)):
        if fd is not None:
            os.dup2(fd, target)


def _keep_devices(settings: Mapping[str, str]) -> tuple[str, list[int]]:
    """Locks the devices of a partition; why they could not be kept, and what holds them."""
    if "pool" not in settings:
        return "", []
    from popdist.poprun.protocol.device_locks import keep

    return keep(settings)


def _become(words: list[str], environ: dict[str, str], prepare: Callable[[], None]) -> None:
    try:
        prepare()
        _execute(words, environ)
    except ProcessLookupError:  # what mpirun has started was killed, of which mpirun knows
        pass
    except (OSError, ValueError) as error:
        os.write(2, f"poprun: cannot start {words[0]}: {error}\n".encode())
    finally:
        os._exit(NOT_FOUND)


def _execute(words: list[str], environ: dict[str, str]) -> None:
    """Becomes the program, or a shell for a script without ``#!``, as shells do."""
    try:
        os.execvpe(words[0], words, environ)  # noqa: S606 - no shell is the point
    except OSError as error:
        script = _find(words[0], environ) if error.errno == errno.ENOEXEC else None
        if script is None:
            raise
        shell = "/bin/sh"
        os.execve(shell, [shell, script, *words[1:]], environ)  # noqa: S606 - as above


def _find(name: str, environ: dict[str, str]) -> str | None:
    """The path of a script that may be executed; None for what is not a text."""
    folders = [""] if "/" in name else os.get_exec_path(environ)
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            with open(path, "rb") as file:
                start = file.read(128)
            return None if b"\0" in start or start.startswith(b"\x7fELF") else path
    return None


def _terminal_or_pipe(settings: Mapping[str, str]) -> tuple[int, int]:
    """A pair of ends for standard output: a terminal where one can be had.

    mpirun gives its programs a terminal, which is what makes their output appear line by line. Its
    terminals have no size, though, which hides progress bars.
    """
    try:
        reader, writer = os.openpty()
    except OSError:
        return os.pipe()
    import fcntl
    import termios

    modes = termios.tcgetattr(writer)
    modes[1] &= ~termios.OPOST  # line feeds stay what they are
    modes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(writer, termios.TCSANOW, modes)
    columns, rows = (int(number) for number in settings.get("size", "80x24").split("x"))
    size = rows.to_bytes(2, sys.byteorder) + columns.to_bytes(2, sys.byteorder) + bytes(4)
    fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
    return reader, writer


def _open_keyboard(path: str | None) -> int | None:
    """The pipe by which the launcher passes on its standard input, held open by the launcher."""
    if path is None:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # the launcher is gone, which the guard will find out
        return None
    os.set_blocking(fd, True)
    return fd


def complete_environment(environ: MutableMapping[str, str], settings: Mapping[str, str]) -> None:
    """Completes the environment of this instance.

    Args:
        environ: The environment that its program is going to get, with the contract in it.
        settings: ``index`` (of the instance), ``world`` (instances of the job), ``local`` (this
            one's number on its host), ``neighbours`` (instances there), ``node`` (this host's
            number among those of the job), ``keep`` (names that the user has set, separated by
            commas), ``set.<NAME>``, ``job`` (its name), ``names`` where the program may import
            the SDK's modules, ``ddp`` where popdist exchanges DistributedDataParallel's gradients,
            ``watch`` where imports of frameworks are watched, and ``stacks`` where stacks can be
            asked for.
    """
    environ.update(
        {name[len(SET) :]: text for name, text in settings.items() if name.startswith(SET)}
    )
    index = settings["index"]
    standard = {
        "RANK": index,
        "WORLD_SIZE": settings.get("world"),
        "LOCAL_RANK": settings.get("local"),
        "LOCAL_WORLD_SIZE": settings.get("neighbours"),
        "NODE_RANK": settings.get("node"),
        JOB: settings.get("job"),
    }
    _drop_mpiruns_own(environ)
    workers = environ.pop(CLUSTER, None)
    if workers is not None:
        standard["TF_CONFIG"] = (
            f'{{"cluster": {{"worker": [{workers}]}}, '
            f'"task": {{"type": "worker", "index": {index}}}}}'
        )
    kept = settings.get("keep", "").split(",")
    for name, value in standard.items():
        if name not in kept and value is not None:
            environ[name] = value
    carried = sorted(name for name in environ if name.startswith(PRIVATE))
    values = {name[len(PRIVATE) :]: environ.pop(name) for name in carried}
    mine = f"{index}_"
    for name, value in values.items():
        if name and not name[0].isdigit():
            environ[name] = value
    for name, value in values.items():
        if name.startswith(mine):
            environ[name[len(mine) :]] = value
    _serve(environ, settings)


def _drop_mpiruns_own(environ: MutableMapping[str, str]) -> None:
    for name in _MPIRUNS_OWN:
        environ.pop(name, None)
    if environ.get(_STARTER) == _ISOLATED:  # for an mpirun that the program itself starts
        del environ[_STARTER]


def _serve(environ: MutableMapping[str, str], settings: Mapping[str, str]) -> None:
    """Asks the program's interpreters for parts of popdist."""
    if "names" in settings:
        enable(environ, TENSORFLOW1 if settings["names"] == "tf1" else SDK_NAMES)
    if "ddp" in settings:
        enable(environ, DDP)
    if "watch" in settings:
        enable(environ, FRAMEWORKS)
    if "stacks" in settings:
        enable(environ, STACKS)
