"""While a job runs, poprun and its guards do not listen, and show no secret."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, run_command

LISTENING = "0A"
MPI = """
import ctypes, os, pathlib, sys, time
prefix = pathlib.Path(os.environ.get("OPAL_PREFIX") or pathlib.Path(sys.executable).parents[1])
mpi = ctypes.CDLL(next(prefix.glob("lib*/libmpi.so.40")), ctypes.RTLD_GLOBAL)
assert mpi.MPI_Init(0, 0) == 0
"""
HOLDS = (
    MPI
    + """
pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
time.sleep(60)
"""
)
SPAWNS = (
    MPI
    + """
one = lambda name: ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_" + name))
parent, children, sent = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(42)
mpi.MPI_Comm_get_parent(ctypes.byref(parent))
if parent.value == ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_null")):
    words = (ctypes.c_char_p * 3)(b"-c", os.environ["SPAWNED"].encode(), None)
    mpi.MPI_Comm_spawn(sys.executable.encode(), words, 1, one("info_null"), 0, one("comm_world"),
                       ctypes.byref(children), None)
    root = -4 if os.environ["RANK"] == "0" else -2  # MPI_ROOT, MPI_PROC_NULL
    mpi.MPI_Bcast(ctypes.byref(sent), 1, one("int"), root, children)
else:
    got = ctypes.c_int(0)
    mpi.MPI_Bcast(ctypes.byref(got), 1, one("int"), 0, parent)
    print("child got", got.value, flush=True)
mpi.MPI_Finalize()
"""
)


def listening_inodes():
    """The sockets of this machine that listen, TCP and Unix."""
    found = set()
    for name in ("tcp", "tcp6"):
        rows = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        found |= {row.split()[9] for row in rows if row.split()[3] == LISTENING}
    for row in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = row.split()
        if int(words[3], 16) & 0x10000:  # accepts connections
            found.add(words[6])
    return found


def sockets_of(pid):
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
        if match:
            found.add(match[1])
    return found


def family(pid):
    """A process and all that descend from it."""
    children = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    parents = {}
    for child in children:
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[child] = int(fields[1])
    found, known = [pid], 0
    while known < len(found):
        found += [child for child, parent in parents.items() if parent == found[known]]
        known += 1
    return found


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def test_nothing_of_ours_listens(tmp_path):
    script = f"touch {tmp_path}/$POPDIST_INSTANCE_INDEX; sleep 60"
    with subprocess.Popen([*LAUNCHER, "-np", "2", "sh", "-c", script]) as launcher:
        try:
            deadline = time.monotonic() + 60
            while len(list(tmp_path.iterdir())) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            ours = [
                pid
                for pid in family(launcher.pid)
                # The guard is a fork of poprun, with its command line; the shells are the fronts.
                if command_of(pid) == command_of(launcher.pid)
                or any(b"guard/front.sh" in word for word in command_of(pid)[:5])
            ]
            assert len(ours) == 4
            listening = listening_inodes()
            assert listening  # mpirun's daemon does, so the look is not blind
            assert not {
                pid: sockets_of(pid) & listening for pid in ours if sockets_of(pid) & listening
            }
        finally:
            os.kill(launcher.pid, signal.SIGTERM)
            launcher.wait(timeout=60)


@contextlib.contextmanager
def held_job(folder, *options):
    """The process of a job whose two instances have entered MPI."""
    words = [*LAUNCHER, "-np", "2", *options, sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(words) as launcher:
        try:
            deadline = time.monotonic() + 60
            while len(list(folder.iterdir())) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield launcher.pid
        finally:
            os.kill(launcher.pid, signal.SIGTERM)
            launcher.wait(timeout=60)


@pytest.mark.parametrize(("tcp", "listen"), [(None, 0), ("no", 0), ("yes", 2)])
def test_programs_listen_only_if_mpi_may_use_tcp(tmp_path, mpirun, tcp, listen):
    options = [f"--mpirun={mpirun}", *([] if tcp is None else [f"--mpi-tcp={tcp}"])]
    with held_job(tmp_path, *options) as launcher:
        listening = listening_inodes()
        programs = [pid for pid in family(launcher) if HOLDS.encode() in command_of(pid)
                    and command_of(pid)[1] == b"-c"]  # fmt: skip
        assert len(programs) == 2
        assert len([pid for pid in programs if sockets_of(pid) & listening]) == listen


def test_a_program_that_starts_mpi_programs_is_told_what_it_needs(mpirun):
    job = [*LAUNCHER, f"--mpirun={mpirun}", "-np", "2"]
    program = [sys.executable, "-c", SPAWNS]
    code, output = run_command([*job, *program], env={"SPAWNED": SPAWNS})
    assert code
    assert "hint: poprun --mpi-tcp=yes, which MPI_Comm_spawn" in output
    code, output = run_command([*job, "--mpi-tcp=yes", *program], env={"SPAWNED": SPAWNS})
    assert (code, output) == (0, "child got 42\n")


SEARCH = (
    "import os; from pathlib import Path; value = os.environ['API_TOKEN'].encode(); found = []\n"
    "for path in Path('/proc').glob('[0-9]*/cmdline'):\n"
    "    try: found += [path.read_bytes()] if value in path.read_bytes() else []\n"
    "    except OSError: pass\n"
    "print(len(value), found)"
)


def test_no_process_of_a_job_shows_a_secret_in_its_command_line(mpirun):
    words = [f"--mpirun={mpirun}", "-np", "2", "-x", "API_TOKEN=s3cr3tvalue"]
    job = [*LAUNCHER, *words, sys.executable, "-c", SEARCH]
    assert run_command(job) == (0, "11 []\n" * 2)


def test_popdist_run_does_not_show_a_secret_either():
    call = (
        "import popdist, contextlib, io\n"
        f"search = {SEARCH!r}\n"
        "secrets = {'API_' + 'TOKEN': 's3cr' + '3tvalue'}\n"
        "popdist.run(lambda: exec(search), num_instances=2, env=secrets)"
    )
    code, output = run_command([sys.executable, "-c", call])
    assert (code, output) == (0, "11 []\n" * 2)
