"""Processes of real jobs that need not import their framework: forks of one that has.

Most of a short job's time is the import of PyTorch or TensorFlow, in each of its ranks. `python`
gives words that stand for ``sys.executable`` in any command line. What they start takes
milliseconds (`warm_start`): it hands its environment, descriptors, directory, cores and limits to a
nursery, a process that has imported a framework and nothing else. The nursery forks a process that
takes all of these over, enters the network and the mounts of a test's host, and runs the program;
signals, the exit status and a sudden end are passed
on. Every launch is a launch of poprun or mpirun as ever, and every program has a process of its
own, so no state can pass from one test to the next.

A nursery has one thread and has started no library of a job, so that a fork is safe. A program with
an environment that Python, the loader or a framework would have read before is started as ever. A
framework has two nurseries, as ranks must not share what is random per process: the seed of hashes
and the addresses of objects, by which an order may differ between ranks. All workers of a run of
the tests share them.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import fcntl
import functools
import gc
import marshal
import os
import resource
import runpy
import select
import shlex
import shutil
import signal
import site
import socket
import struct
import subprocess
import sys
import tempfile
import types
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from tests.distributed.warm_start import NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
NURSERIES = 2  # a framework
OWNER = "POPDIST_TESTS_OWNER"
"""Names another process than the run of the tests for nurseries of its own."""

IMPORTS = {
    # torch imports its compiler, for a second, with the first optimizer.
    "torch": ("numpy", "torch", "torch._dynamo", "cloudpickle", "packaging.version", "pytest"),
    "tensorflow": ("numpy", "tensorflow", "cloudpickle", "packaging.version", "pytest"),
}
"""What nurseries import: no module of the project, and no Horovod, as popdist looks whether a
program has imported one."""

FAMILIES = {
    "torch": {"torch", "popdist_torch", "popdist_onnx", "poptorch", "popart"},
    "tensorflow": {"tensorflow", "popdist_tf"},
}
"""The modules of whose programs a framework is imported in any case."""

PROCESS_GROUPS = ("torch.distributed", "torch.nn.parallel", "accelerate", "transformers")
"""Modules whose programs start as ever. PyTorch ends a process group of gloo with the GIL held, and
waits for a thread that may need it; a program that starts at once meets this in one of six runs."""

AT_IMPORT = (
    "ATEN_", "CUDA_", "GLIBC_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "NPY_", "OMP_",
    "ONEDNN_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TF_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_",
    "XLA_",
)  # fmt: skip
"""Beginnings of variables that are read before a program's first line, or by an import."""

LATER = (
    "PYTHONPATH", "PYTHONUNBUFFERED", "PYTORCH_NVML_BASED_CUDA_CHECK", "TF_CONFIG",
    "TF_CPP_MIN_LOG_LEVEL", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip
"""Variables with such a beginning that are read later, taken over, or for messages alone."""

_START = [sys.executable, "-c", "from tests.distributed.warm import main; main()"]
_MEMBER = [sys.executable, "-I", "-S", str(Path(__file__).with_name("warm_start.py"))]
_PATIENCE_SECONDS = 200  # for an import, on a machine that is busy
_PR_SET_PDEATHSIG = 1
_THRESHOLDS = (50_000, 20, 20)  # collections take a tenth of the time of TensorFlow's tracing
_HIGH = 512  # descriptors from here on are free
_NAMESPACES = ("net", "uts", "mnt")  # those in which hosts of tests differ
_PEER = struct.Struct("3i")  # process, user, group

# Kept, as they would else be waited for when they are collected.
_started: list[subprocess.Popen[bytes]] = []


def python(framework: str | None) -> list[str]:
    """The words that start Python with a framework (a key of `IMPORTS`) or, for None, with none."""
    if framework is None:
        return [sys.executable]
    return [*_MEMBER, str(_start_nurseries(framework)), sys.executable]


def folder_of_python(framework: str) -> str:
    """A folder for ``PATH`` whose ``python`` and ``python3`` are that of `python`."""
    words = python(framework)
    folder = _folder(framework)
    with _alone(folder):
        if not (folder / "bin").exists():
            (folder / "bin").mkdir()
            for name in ("python", "python3"):
                (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
                (folder / "bin" / name).chmod(0o755)
    return str(folder / "bin")


@functools.cache
def framework_of(path: str) -> str | None:
    """The one framework that a file imports, at its top or in a function; None for none or both."""
    return framework_in(Path(path).read_text(encoding="utf-8"))


def framework_in(*programs: str) -> str | None:
    """The one framework that programs import; None for none, both, or one of `PROCESS_GROUPS`."""
    names = set()
    for node in (node for text in programs for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    if any(name.startswith(PROCESS_GROUPS) for name in names):
        return None
    words = {part for name in names for part in name.split(".")}
    found = [framework for framework, family in FAMILIES.items() if words & family]
    return found[0] if len(found) == 1 else None


def environment() -> dict[str, str]:
    """The environment of nurseries, which is that of the programs that tests start."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _start_nurseries(framework: str) -> Path:
    """Starts a framework's nurseries, if need be; the folder of their sockets."""
    folder = _folder(framework)
    sockets = folder / "nurseries"
    with _alone(folder):
        if not all(_listens(sockets / str(number)) for number in range(NURSERIES)):
            shutil.rmtree(sockets, ignore_errors=True)  # with what a killed run has left
            sockets.mkdir()
            nurseries = [
                subprocess.Popen(
                    [*_START, framework, str(sockets / str(number)), str(owner())],
                    env=environment(),
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                for number in range(NURSERIES)
            ]
            _started.extend(nurseries)
            for nursery in nurseries:
                _await(nursery)
    return sockets


def owner() -> int:
    """The process with which nurseries end: the run of the tests, also for one of its workers."""
    chosen = os.environ.get(OWNER)
    if chosen:
        return int(chosen)
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def _folder(framework: str) -> Path:
    """The folder of a framework, for all workers of this run."""
    folder = Path(tempfile.gettempdir(), f"popdist-warm-{owner()}-{framework}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps the other workers of this run away."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _listens(path: Path) -> bool:
    """Whether a nursery lives; it sees a connection without a program."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def _await(nursery: subprocess.Popen[bytes]) -> None:
    said = b""
    while not said.endswith(b"\nready\n"):
        ready, _, _ = select.select([nursery.stdout], [], [], _PATIENCE_SECONDS)
        part = os.read(nursery.stdout.fileno(), 1 << 16) if ready else b""
        if not part:
            nursery.kill()
            raise AssertionError(f"a nursery does not start: {said.decode(errors='replace')}")
        said += part


# In a nursery.


def main() -> None:
    """Imports a framework, forks a process for every program, and becomes it in that process."""
    framework, path, run = sys.argv[1:]
    owner_ends = os.pidfd_open(int(run))
    for name in IMPORTS[framework]:
        import_module(name)
    if framework == "tensorflow":
        dir(sys.modules["tensorflow"].keras)  # Keras is imported when it is first used
    threads = [*Path("/proc/self/task").iterdir()]
    if len(threads) != 1:
        raise RuntimeError(f"a fork is not safe beside {len(threads) - 1} threads")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        os.write(1, b"\nready\n")
        nothing = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(nothing, fd)
        os.close(nothing)
        program = Nursery(listener, owner_ends).serve()
    if program is not None:
        program.run()
    else:
        shutil.rmtree(Path(path).parents[1], ignore_errors=True)


class Nursery:
    """Forks processes, and sees them to their end.

    Args:
        listener: Where `warm_start` connects.
        owner_ends: Descriptor of the process with which this one ends.
    """

    def __init__(self, listener: socket.socket, owner_ends: int) -> None:
        self._listener = listener
        self._owner_ends = owner_ends
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(owner_ends, select.POLLIN)
        self._members: dict[int, Member] = {}

    def serve(self) -> Program | None:
        """Returns the program in each new process; None at the end of the tests."""
        while True:
            ready = {fd for fd, _ in self._poll.poll()}
            if self._owner_ends in ready:
                for member in {*self._members.values()}:
                    member.kill()
                return None
            for fd in ready & self._members.keys():
                if fd in self._members:  # else its other descriptor was seen first
                    self._end(self._members[fd], lost=fd != self._members[fd].ended)
            # Last, as a new process may get the descriptors of one that has just ended.
            if self._listener.fileno() in ready:
                program = self._accept()
                if program is not None:
                    return program

    def _accept(self) -> Program | None:
        connection, _ = self._listener.accept()
        try:
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            program = Program(*_receive(connection), _PEER.unpack(peer)[0])
        except (OSError, EOFError):  # ended while it was starting
            connection.close()
            return None
        if not program.is_as_imported():
            program.close()
            with suppress(OSError):
                connection.sendall(bytes(NUMBER))
            connection.close()
            return None
        pid = os.fork()
        if not pid:
            connection.close()
            os.close(self._owner_ends)
            for member in {*self._members.values()}:
                member.close()
            return program
        program.close()
        with suppress(OSError):
            os.setpgid(pid, pid)
        member = Member(pid, connection)
        for fd in (member.ended, connection.fileno()):
            self._members[fd] = member
            self._poll.register(fd, select.POLLIN)
        with suppress(OSError):
            connection.sendall(pid.to_bytes(NUMBER, "big"))
        return None

    def _end(self, member: Member, *, lost: bool) -> None:
        """Passes the end of a process on, or ends it where its starting process is lost."""
        for fd in (member.ended, member.connection.fileno()):
            del self._members[fd]
            self._poll.unregister(fd)
        if lost:
            member.kill()
        _, status = os.waitpid(member.pid, 0)
        member.kill()  # what it has left behind
        code = os.waitstatus_to_exitcode(status)
        with suppress(OSError):
            member.connection.sendall(code.to_bytes(NUMBER, "big", signed=True))
        member.close()


class Member:
    """A process that a nursery has forked.

    Args:
        pid: Its number, and that of its process group.
        connection: To the process that stands for it.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        self.ended = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kills all of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Closes what this process has of it."""
        self.connection.close()
        os.close(self.ended)


class Program:
    """A program that is to run, with all that it has from the process that stands for it.

    Args:
        state: As `warm_start` sends it.
        fds: The descriptors, as they were received.
        pid: The process that stands for it.
    """

    def __init__(self, state: dict[str, object], fds: list[int], pid: int) -> None:
        self._state = state
        self._fds = fds
        self._pid = pid

    def close(self) -> None:
        """Closes the descriptors in the nursery."""
        for fd in self._fds:
            os.close(fd)

    def is_as_imported(self) -> bool:
        """Whether the program would have found what the nursery has imported."""
        _, first, *_ = [*self._state["words"], "", ""]
        theirs = read_at_import(self._state["environ"])
        return (
            theirs == read_at_import(os.environb)
            and {*_folders(os.environb)} <= {*_folders(self._state["environ"])}
            and (first in ("-c", "-m") or (first and not first.startswith("-")))
        )

    def run(self) -> None:
        """Becomes the program."""
        self._take_over()
        try:
            _see_folders()
            _run(self._state["words"])
        except BaseException as error:
            hook, trace = sys.excepthook, error.__traceback__
            while trace and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
                trace = trace.tb_next
            sys.excepthook = lambda kind, value, _: hook(kind, value.with_traceback(trace), trace)
            raise

    def _take_over(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with suppress(OSError):
            os.setpgid(0, 0)
        held = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH) for fd in self._fds]
        self.close()
        for fd, target in zip(held, self._state["fds"], strict=True):
            os.dup2(fd, target)
            os.close(fd)
        _enter_host(self._pid)
        os.chdir(self._state["directory"])
        os.umask(self._state["umask"])
        os.sched_setaffinity(0, self._state["cores"])
        for kind, limits in self._state["limits"]:
            resource.setrlimit(kind, limits)
        os.environb.clear()
        os.environb.update(self._state["environ"])
        for stream, fd in ((sys.stdin, 0), (sys.stdout, 1), (sys.stderr, 2)):
            at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
            stream.reconfigure(line_buffering=fd == 2 or os.isatty(fd), write_through=at_once)
        tempfile.tempdir = None
        # As at import; Python's own generator sees to itself.
        sys.modules["numpy"].random.seed()
        if "torch" in sys.modules:
            sys.modules["torch"].default_generator.seed()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _enter_host(pid: int) -> None:
    """Enters the namespaces of a process, where they are others than those of this one."""
    for name in _NAMESPACES:
        theirs = Path(f"/proc/{pid}/ns/{name}")
        if theirs.readlink() != Path(f"/proc/self/ns/{name}").readlink():
            fd = os.open(theirs, os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).setns(fd, 0):
                raise OSError(ctypes.get_errno(), f"setns {name}")
            os.close(fd)


def _folders(environ: Mapping[bytes, bytes]) -> list[str]:
    """The folders of ``PYTHONPATH``."""
    return [one for one in os.fsdecode(environ.get(b"PYTHONPATH", b"")).split(os.pathsep) if one]


def _see_folders() -> None:
    """Puts the folders of ``PYTHONPATH`` first, and runs the first ``sitecustomize`` in them."""
    folders = _folders(os.environb)
    # The first place is that of the program's own folder, which follows.
    sys.path[:] = [*folders, *(path for path in sys.path[1:] if path not in folders)]
    if any(Path(folder, "sitecustomize.py").exists() for folder in folders):
        sys.modules.pop("sitecustomize", None)
        site.execsitecustomize()
    sys.path.insert(0, "")


def _run(words: list[str]) -> None:
    """Runs a program as the interpreter does."""
    sys.orig_argv = words
    _, first, *arguments = words
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    if first == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        program.__dict__["__builtins__"] = builtins
        exec(compile(code, "<string>", "exec", dont_inherit=True), program.__dict__)  # noqa: S102
    elif first == "-m":
        name, *arguments = arguments
        sys.argv = [name, *arguments]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *arguments]
        sys.path[0] = str(Path(first).resolve().parent)
        program.__file__ = first
        program.__dict__["__builtins__"] = builtins
        code = compile(Path(first).read_bytes(), first, "exec", dont_inherit=True)
        exec(code, program.__dict__)  # noqa: S102


def _receive(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    """The state that `warm_start` sends, and its descriptors here."""
    size, fds, _, _ = socket.recv_fds(connection, NUMBER, 64)
    length = int.from_bytes(size, "big")
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return marshal.loads(bytes(data)), fds  # noqa: S302 - from a process of this user


def read_at_import(environ: Mapping[bytes, bytes]) -> dict[str, str]:
    """The variables that are read at import: a program with others does not start warm.

    mpirun names the environment's own libraries to the loader, which finds them without that.
    """
    named = {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
    found = {
        name: value
        for name, value in named.items()
        if value and name.startswith(AT_IMPORT) and name not in LATER
    }
    folders = found.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
    found["LD_LIBRARY_PATH"] = os.pathsep.join({*folders} - {"", f"{sys.prefix}/lib"})
    return found


if __name__ == "__main__":
    main()
