"""The fault matrix as data: what goes wrong, where, and how the job must end.

`test_faults` runs each row on one host, and `tests.hosts.test_faults_on_two_hosts` on two. After
each row nothing of the job may run, and no file, folder or shared memory of it may be left.
``POPDIST_RECORD_FAULTS=tests/distributed/faults.json`` writes what was seen there, from which
``docs/generate.py`` makes the table of the page about how a job ends.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import OPEN_MPI
from tests.distributed.endings import DETACHING, STUBBORN, Job, parent_of
from tests.distributed.jobs import EXHAUSTIVE

RECORD = Path(__file__).with_name("faults.json")

# Exchanges messages by shared memory, and has shared memory and a semaphore of its own.
SHARING = """
import ctypes, os, pathlib, sys, time
from multiprocessing import Semaphore, shared_memory
prefix = pathlib.Path(sys.executable).parents[1]
prefix = pathlib.Path(os.environ.get("OPAL_PREFIX") or prefix)
assert ctypes.CDLL(next(prefix.glob("lib*/libmpi.so.40")), ctypes.RTLD_GLOBAL).MPI_Init(0, 0) == 0
kept = shared_memory.SharedMemory(create=True, size=9), Semaphore()
print("ready", flush=True)
time.sleep(300)
"""
HUNGRY = """
import resource, time
resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
print("ready", flush=True)
time.sleep(0.5)
bytearray(1 << 30)
"""
TALKING = """
import itertools, time
print("ready", flush=True)
time.sleep(2)
for step in itertools.count(): print("step", step, flush=True); time.sleep(0.01)
"""
LOUD = """
import time
print("ready", flush=True)
time.sleep(1)
print("x" * 100_000, flush=True)
"""
FAILING = (
    "print('ready', flush=True)\nimport time\ntime.sleep(0.5)\nraise ValueError('the reason')\n"
)


@dataclass(frozen=True)
class Fault:
    """A row of the matrix.

    Attributes:
        place: What fails.
        what: How.
        code: poprun's exit code; negative for the signal that killed poprun. A pair has one for
            each generation of Open MPI.
        said: Words that poprun prints.
        act: Makes the running job fail; None where the program or its surroundings do.
        hosts: On how many hosts the row is possible.
        program: What each instance runs.
        words: Its arguments.
        options: Options of poprun; ``{folder}`` is the job's folder.
        before: A shell command in the job's own mount namespace, before poprun starts.
        terminal: Whether poprun has a terminal.
        early: Whether the fault happens when poprun has just started mpirun.
        grace: Seconds after the end of poprun within which everything must have ended.
    """

    place: str
    what: str
    code: int | tuple[int, int]
    said: str
    act: Callable[[Job], None] | None = None
    hosts: tuple[int, ...] = (1, 2)
    program: str = DETACHING
    words: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    before: str = ""
    terminal: bool = False
    early: bool = False
    grace: float = 2

    @property
    def name(self):
        """What identifies the row."""
        return f"{self.place}: {self.what}"

    def options_in(self, folder):
        """poprun's options for a job with this folder."""
        return [one.format(folder=folder) for one in self.options]


def kill(*parts):
    """An action that kills parts of a job, each with SIGKILL."""

    def act(job):
        first, *others = [part(job) for part in parts]
        os.kill(first, signal.SIGKILL)
        for pid in others:
            with suppress(ProcessLookupError):  # the job may end it first
                os.kill(pid, signal.SIGKILL)

    return act


def send(number, part):
    """An action that sends a signal to a part of a job."""
    return lambda job: os.kill(part(job), number)


def stop_and(part, then):
    """An action that stops a part of a job before something else happens."""

    def act(job):
        os.kill(part(job), signal.SIGSTOP)
        then(job)

    return act


def program(job):
    """The program of instance 1, which runs on the second host where there are two."""
    return job.program(1)


def guard(job):
    """The guard of instance 1."""
    return parent_of(job.program(1))


def front(job):
    """The process that mpirun has started for instance 1, or the proxy of its guard."""
    return job.front(1)


def mpirun(job):
    return job.mpirun


def poprun(job):
    return job.process.pid


def orted(job):
    """mpirun's daemon on the second host."""
    return parent_of(job.front(1))


def keeper(job):
    """The process between poprun and mpirun in a job on several hosts."""
    return parent_of(job.mpirun)


def interrupt(job):
    job.process.send_signal(signal.SIGINT)


def twice(job):
    """A second interrupt does not wait for the programs' patience."""
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    job.process.send_signal(signal.SIGINT)


def jump(job):
    """The clock goes back by an hour, and then a program is killed."""
    (job.folder / "jump").touch()
    os.kill(job.program(1), signal.SIGKILL)


PATIENCE = ("--grace-period=1",)
QUICK = {"hosts": (2,), "options": ("--host-timeout=2", *PATIENCE)}
UNHEARD = "has not been heard of for 2 s, so the job ends"
STAYS = {"program": STUBBORN, "words": ("ignore",), "options": PATIENCE}

FAULTS = [
    Fault("instance", "all end with 0", 0, "", words=("0",)),
    Fault("instance", "exit code 3", 3, "ended with exit code 3", words=("3",)),
    Fault("instance", "raises", 1, "ended with exit code 1", program=FAILING),
    Fault("instance", "killed", 137, "was killed by signal 9 (SIGKILL)", kill(program)),
    Fault("instance", "crashes", 139, "SIGSEGV", send(signal.SIGSEGV, program)),
    Fault("instance", "stopped, then an interrupt", 130, "SIGINT",
          stop_and(program, send(signal.SIGINT, poprun))),
    Fault("instance", "SIGABRT", 134, "SIGABRT", send(signal.SIGABRT, program)),
    Fault("instance", "SIGTERM", 143, "was killed by signal 15 (SIGTERM)",
          send(signal.SIGTERM, program)),
    Fault("instance", "all are killed at once", 137, "was killed by signal 9 (SIGKILL)",
          kill(program, lambda job: job.program(0))),
    Fault("instance", "stopped, with --timeout", 124, "as --timeout asks",
          send(signal.SIGSTOP, program), options=("--timeout=5", *PATIENCE)),
    Fault("instance", "stopped, with --stall-timeout", 124, "which is stopped (as by SIGSTOP)",
          send(signal.SIGSTOP, program), options=("--stall-timeout=1", *PATIENCE)),
    Fault("instance", "ignores signals, with --timeout", 124, "as --timeout asks", program=STUBBORN,
          words=("ignore",), options=("--timeout=5", *PATIENCE)),
    Fault("guard", "killed", 137, "guard", kill(guard)),
    Fault("guard", "killed with its front", 137, "guard", kill(front, guard), grace=4),
    Fault("guard", "its front is killed", 137, "guard", kill(front)),
    Fault("guard", "killed; programs ignore signals", 137, "guard", kill(guard), **STAYS),
    Fault("guard", "stopped, then SIGTERM for poprun", 143, "SIGTERM",
          stop_and(guard, send(signal.SIGTERM, poprun)), hosts=(1,), options=PATIENCE),
    Fault("guard", "stopped, then poprun is killed", -9, "", stop_and(guard, kill(poprun)),
          hosts=(1,), grace=4),
    Fault("guard", "stopped", 1, UNHEARD, send(signal.SIGSTOP, guard), grace=6, **QUICK),
    Fault("guard", "its front is stopped, then SIGTERM for poprun", 143, "SIGTERM",
          stop_and(front, send(signal.SIGTERM, poprun)), options=PATIENCE, grace=6),
    Fault("orted", "killed", 1, "poprun: ", kill(orted), hosts=(2,), grace=4),
    Fault("orted", "SIGTERM", 1, "poprun: ", send(signal.SIGTERM, orted), grace=4, **QUICK),
    Fault("orted", "stopped", 1, UNHEARD, send(signal.SIGSTOP, orted), grace=6, **QUICK),
    Fault("mpirun", "SIGTERM", (143, 1), "poprun: ", send(signal.SIGTERM, mpirun), hosts=(1,),
          grace=4),
    Fault("mpirun", "SIGTERM", 1, "mpirun ended with exit code 1", send(signal.SIGTERM, mpirun),
          hosts=(2,), grace=4),
    Fault("mpirun", "stopped", 1, UNHEARD, send(signal.SIGSTOP, mpirun), grace=6, **QUICK),
    Fault("mpirun", "stopped, then an interrupt", 130, "SIGINT", stop_and(mpirun, interrupt),
          options=PATIENCE, grace=6),
    Fault("mpirun", "its keeper is killed", 137, "", kill(keeper), hosts=(2,), grace=4),
    Fault("mpirun", "killed", 137, "mpirun was killed by signal 9", kill(mpirun), grace=4),
    Fault("mpirun", "killed; programs ignore signals", 137, "mpirun was killed by signal 9",
          kill(mpirun), grace=4, **STAYS),
    Fault("poprun", "killed", -9, "", kill(poprun), grace=6),
    Fault("poprun", "killed; programs ignore signals", -9, "", kill(poprun), grace=6, **STAYS),
    Fault("poprun", "killed while it starts", -9, "", kill(poprun), early=True, grace=6),
    Fault("poprun", "killed with its guard", -9, "", kill(poprun, guard), hosts=(1,), grace=4),
    Fault("poprun", "killed with its guard while it starts", -9, "",
          kill(poprun, lambda job: job.guard), hosts=(1,), early=True, grace=4),
    Fault("poprun", "killed with mpirun", -9, "", kill(poprun, mpirun), grace=6),
    Fault("poprun", "SIGQUIT", -3, "", send(signal.SIGQUIT, poprun), grace=6),
    Fault("poprun", "SIGHUP", 129, "SIGHUP", send(signal.SIGHUP, poprun)),
    Fault("poprun", "Ctrl-C", 130, "SIGINT", send(signal.SIGINT, poprun)),
    Fault("poprun", "Ctrl-C; programs ignore signals", 130, "did not end when asked to",
          send(signal.SIGINT, poprun), **STAYS),
    Fault("poprun", "Ctrl-C twice; programs ignore signals", 130, "did not end when asked to",
          twice, **STAYS),
    Fault("poprun", "SIGTERM", 143, "SIGTERM", send(signal.SIGTERM, poprun)),
    Fault("host", "dies", 1, "has not been heard of", lambda job: job.hosts.kill(1), hosts=(2,),
          options=("--host-timeout=2",), grace=4),
    Fault("link", "is cut", 1, "has not been heard of", lambda job: job.hosts.cut(1), hosts=(2,),
          options=("--host-timeout=2",), grace=12),
    Fault("link", "loses all to the host", 1, UNHEARD, lambda job: job.hosts.cut_to(1), grace=12,
          **QUICK),
    Fault("link", "loses all from the host", 1, UNHEARD, lambda job: job.hosts.cut_from(1),
          grace=12, **QUICK),
    Fault("reader", "goes away", 141, "SIGPIPE", lambda job: job.stop_reading(),
          program=TALKING),
    Fault("disk", "full for temporary files", 2, "[PD109]", hosts=(1,), early=True,
          before="mount -t tmpfs -o size=4k tmpfs {folder}"),
    Fault("disk", "without inodes for temporary files", 2, "[PD109]", hosts=(1,), early=True,
          before="mount -t tmpfs -o nr_inodes=2 tmpfs {folder}"),
    Fault("disk", "read-only for temporary files", 2, "[PD109]", hosts=(1,), early=True,
          before="mount -t tmpfs -o ro tmpfs {folder}"),
    Fault("disk", "full for the logs", 0, "the output that is kept ends here: [Errno 28]",
          program=LOUD, options=("--log-dir={folder}/logs",),
          before="mkdir {folder}/logs && mount -t tmpfs -o size=64k tmpfs {folder}/logs"),
    Fault("memory", "none is left", 1, "out of memory (it said: MemoryError)", program=HUNGRY),
    Fault("clock", "goes back by an hour while an instance is killed", 137, "SIGKILL", jump),
    Fault("terminal", "is closed", 129, "SIGHUP", lambda job: job.hang_up(), terminal=True),
    Fault("/dev/shm", "an instance is killed", 137, "SIGKILL", kill(program), program=SHARING),
    Fault("/dev/shm", "mpirun is killed", 137, "mpirun was killed", kill(mpirun),
          program=SHARING, grace=4),
    Fault("/dev/shm", "poprun is killed", -9, "", kill(poprun), program=SHARING, grace=6),
    Fault("semaphores", "an interrupt", 130, "SIGINT", send(signal.SIGINT, poprun),
          program=SHARING),
    Fault("semaphores", "the guard is killed", 137, "guard", kill(guard), program=SHARING),
]  # fmt: skip


def rows(hosts):
    """The faults for a number of hosts; with ``make test``, half of those for both numbers."""
    return [
        fault
        for index, fault in enumerate(FAULTS)
        if hosts in fault.hosts and (EXHAUSTIVE or len(fault.hosts) == 1 or index % 2 == hosts % 2)
    ]


def check(fault, job, generation):
    """Lets a fault happen in a job, checks its end, and records it where that is wanted."""
    job.until_started() if fault.early else job.until_ready()
    began = time.monotonic()
    if fault.act is not None:
        fault.act(job)
    code, output = job.end(timeout=40, grace=fault.grace)
    seconds = time.monotonic() - began
    codes = dict.fromkeys(OPEN_MPI.values(), fault.code)
    if isinstance(fault.code, tuple):
        codes = dict(zip(OPEN_MPI.values(), fault.code, strict=True))
    assert code == codes[generation], output
    assert fault.said in output, output
    # Neither our own stack, nor mpirun's guesses, nor a cause that is not the fault.
    untrue = ["popdist/poprun", "unable to reliably start", "terminated normally"]
    untrue += [] if "SIGTERM" in fault.what else ["which poprun did not send"]
    for words in untrue:
        assert words not in output, output
    record = os.environ.get("POPDIST_RECORD_FAULTS")
    if record:
        _write(Path(record), fault, job, generation, code, seconds, output)


def recorded():
    """The rows that were recorded."""
    return json.loads(RECORD.read_text())


def _write(path, fault, job, generation, code, seconds, output):
    rows = json.loads(path.read_text()) if path.exists() else []
    said = next((line for line in output.splitlines() if fault.said in line), "")
    row = {
        "place": fault.place,
        "what": fault.what,
        "hosts": 2 if job.hosts else 1,
        "open_mpi": generation,
        "code": code,
        "said": said.replace(str(job.folder), "<folder>"),
        "survivors": len(job.alive()),
        "leftovers": len(job.left()),
        "seconds": round(seconds, 1),
    }
    key = ("place", "what", "hosts", "open_mpi")
    rows = [one for one in rows if any(one[name] != row[name] for name in key)]
    order = [one.name for one in FAULTS]
    rows.append(row)
    rows.sort(key=lambda one: (order.index(f"{one['place']}: {one['what']}"), one["hosts"]))
    path.write_text("[\n" + ",\n".join(json.dumps(one) for one in rows) + "\n]\n")
