"""Starts an instance's program: its streams, its environment, its share of the cores."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import errno
import os
import sys

from popdist import program_status
from popdist.poprun.machines.numa import place_of
from popdist.poprun.protocol.guard_argv import CLUSTER, PRIVATE, SET
from popdist.poprun.protocol.processes import hear_of_parents_end, lead_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

_MPIRUNS_OWN = ("OMPI_MCA_orte_local_tmpdir_base", "PRTE_MCA_prte_local_tmpdir_base")
"""Where mpirun alone keeps its files, in a job over several hosts. Its daemons tell programs of
another place, and MPI does not start with both."""

NOT_FOUND = 127
"""The exit code where the program cannot be started, as in shells."""


class Program:
    """A program that has been started.

    Attributes:
        pid: Its process, which leads a group of its own.
        out: Where its standard output can be read.
        err: Where its standard error can be read.
    """

    def __init__(self, pid: int, out: int, err: int) -> None:
        self.pid = pid
        self.out = out
        self.err = err


def start_program(
    settings: Mapping[str, str],
    words: list[str],
    *,
    resets: Iterable[int],
    status_fd: int | None,
) -> Program:
    """Starts the program in a process group of its own, which dies with the calling process.

    Args:
        settings: The guard's settings.
        words: The program and its arguments.
        resets: Signals that get their default action.
        status_fd: The file in which the program may state what it does, or None.

    Returns:
        The program.
    """
    out, out_end = _terminal_or_pipe(settings)
    err, err_end = os.pipe()
    keyboard = _open_keyboard(settings.get("stdin"))
    lost = _keep_devices(settings)
    pid = os.fork()
    if pid:
        lead_group(pid)
        for fd in (out_end, err_end, keyboard):
            if fd is not None:
                os.close(fd)
        return Program(pid, out, err)

    def prepare() -> None:
        lead_group(0)
        hear_of_parents_end()
        if lost:
            os.dup2(err_end, 2)
            raise OSError(lost)
        if keyboard is not None:
            os.dup2(keyboard, 0)
        os.dup2(out_end, 1)
        os.dup2(err_end, 2)
        for number in (*resets, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if status_fd is not None:
            os.set_inheritable(status_fd, True)  # noqa: FBT003 - positional only
            os.environ[program_status.VARIABLE] = str(status_fd)
        complete_environment(os.environ, settings)
        if problem := place_of(settings).enter(os.environ):
            os.write(2, f"poprun: {problem}\n".encode())

    _become(words, prepare)
    raise AssertionError  # not reached


def _keep_devices(settings: Mapping[str, str]) -> str:
    """Locks the devices of a partition; why they could not be kept, or an empty text."""
    if "pool" not in settings:
        return ""
    from popdist.poprun.protocol.device_locks import keep

    return keep(settings)


def _become(words: list[str], prepare: Callable[[], None]) -> None:
    try:
        prepare()
        _execute(words)
    except (OSError, ValueError) as error:
        os.write(2, f"poprun: cannot start {words[0]}: {error}\n".encode())
    finally:
        os._exit(NOT_FOUND)


def _execute(words: list[str]) -> None:
    """Becomes the program, or a shell for a script without ``#!``, as shells do."""
    try:
        os.execvp(words[0], words)  # noqa: S606 - no shell is the point
    except OSError as error:
        script = _find(words[0]) if error.errno == errno.ENOEXEC else None
        if script is None:
            raise
        os.execv("/bin/sh", ["/bin/sh", script, *words[1:]])  # noqa: S606 - as above


def _find(name: str) -> str | None:
    """The path of a script that may be executed; None for what is no text."""
    folders = [""] if "/" in name else os.get_exec_path()
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
            commas), ``set.<NAME>``, and ``names`` where the program may import the SDK's modules.
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
    }
    for name in _MPIRUNS_OWN:
        environ.pop(name, None)
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
    if "names" in settings:
        from popdist.sdk.startup.environment import enable

        enable(environ)
