"""A running job with grandchildren, for tests of how jobs end."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tests.distributed.jobs import LAUNCHER, ROOT

# Long enough never to be reached; how soon things end is bounded by the waits below.
STUBBORN = """
import os, signal, subprocess, sys, time
if "ignore" in sys.argv:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", sys.argv[1]])
print("ready", flush=True)
time.sleep(300)
"""

# The same with every way in which a process can leave the reach of its parent. The word after the
# mark is the program's exit code; without one it stays.
DETACHING = """
import os, signal, subprocess, sys, time
SLEEP = [sys.executable, "-c", "import signal, sys, time\\n"
    "if 'deaf' in sys.argv:\\n"
    "    for number in range(1, 32):\\n"
    "        if number not in (9, 19): signal.signal(number, signal.SIG_IGN)\\n"
    "time.sleep(300)", sys.argv[1]]
nothing = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen(SLEEP, start_new_session=True, **nothing)
subprocess.Popen(SLEEP, process_group=0)  # holds the program's output
subprocess.Popen([*SLEEP, "deaf"], start_new_session=True, **nothing)
stopped = subprocess.Popen(SLEEP, start_new_session=True, **nothing)
os.kill(stopped.pid, signal.SIGSTOP)
if os.fork() == 0:  # a daemon, as in books
    os.setsid()
    if os.fork() == 0:
        os.execv(SLEEP[0], SLEEP)
    os._exit(0)
os.wait()
if "/poprun-" in open("/proc/self/cgroup").read():  # no other way finds one without a variable
    subprocess.Popen(SLEEP, start_new_session=True, env={}, **nothing)
print("ready", flush=True)
if len(sys.argv) > 2:
    time.sleep(0.5)
    os._exit(int(sys.argv[2]))
time.sleep(300)
"""

_BUSY = 2
"""Times as long as on a quiet machine: workers of the tests share the processors."""


# Calls of the C library that tell the time of day, an hour behind once a file exists.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    const char *file = getenv("JUMP");
    if (clock == CLOCK_REALTIME && file && access(file, F_OK) == 0) now->tv_sec -= 3600;
    return result;
}
"""


class Job:
    """A running job of two instances, all of whose processes are marked in their command lines.

    Args:
        options: Options of poprun.
        tmp_path: The folder for temporary files of all its processes.
        *words: Arguments of the program, after the mark.
        program: Python code that says "ready".
        hosts: The `Hosts` on which it runs; None for this machine.
        before: A shell command before poprun, in a mount namespace with a /dev/shm of the job's
            own; None for no such namespace.
        terminal: Whether poprun has a terminal, which `hang_up` closes.
        environment: More variables for poprun.
    """

    def __init__(
        self, options, tmp_path, *words, program=STUBBORN, hosts=None, before=None,
        terminal=False, environment=None,
    ):  # fmt: skip
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.folder = tmp_path
        self.hosts = hosts
        self._code = program
        self._holder = None
        command = [*LAUNCHER, *options, "-np", "2", sys.executable, "-c", program, self.mark]
        command += words
        if before is not None:
            command = self._inside_namespace(before, command)
        stdin, self._terminal = subprocess.DEVNULL, None
        if terminal:
            self._terminal, stdin = os.openpty()
            command = ["setsid", "--ctty", *command]
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(tmp_path),
                **(environment or {}),
            },
            start_new_session=not terminal,
        )
        if terminal:
            os.close(stdin)

    def _inside_namespace(self, before, command):
        ready = self.folder / "namespace"
        os.mkfifo(ready)
        # Opened first, as another file system may hide it.
        mounts = f"exec 3>{ready} && mount -t tmpfs tmpfs /dev/shm && {before}"
        script = f"{mounts} && echo >&3 && exec sleep 300 3>&-"
        self._holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", script])
        ready.read_text()
        return ["nsenter", f"--target={self._holder.pid}", "--mount", *command]

    def hang_up(self):
        """Closes poprun's terminal."""
        os.close(self._terminal)
        self._terminal = None

    def stop_reading(self):
        """Closes the reading end of poprun's output."""
        self.process.stdout.close()
        self.process.stdout = None

    def clean_up(self):
        """Leaves nothing behind, whatever the test found."""
        for pid in [self.process.pid, *self.alive()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        for path in self.left():  # else later jobs on these hosts are blamed for it
            shutil.rmtree(path, ignore_errors=True)
        if self._terminal is not None:
            os.close(self._terminal)
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()

    def until_ready(self):
        for _ in range(2):
            while (line := self.process.stdout.readline()) != b"ready\n":
                assert line == b"more\n", self.process.communicate()
        return self

    def until_started(self):
        """Waits until poprun has started mpirun and, on one host, its guard."""
        while self.process.poll() is None:
            started = children(self.process.pid)
            if self.hosts:
                keepers = [pid for pid in started if b"keeper.py" in b" ".join(words_of(pid))]
                started = [pid for keeper in keepers for pid in (keeper, *children(keeper))]
            if len(started) > 1:
                return
            time.sleep(0.001)

    @property
    def mpirun(self):
        child = children(self.process.pid)[0]
        return children(child)[0] if self.hosts else child  # below its keeper

    def front(self, which):
        """The process that mpirun has started for an instance."""
        if self.hosts:
            return parent_of(parent_of(self.program(which)))
        return children(self.mpirun)[which]

    @property
    def guard(self):
        return children(self.process.pid)[1]

    def program(self, which):
        """The program of an instance."""
        for pid in self.alive():
            process = Path("/proc", str(pid))
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                variables = (process / "environ").read_bytes().split(b"\0")
                if words[2] == self._code.encode() and b"RANK=%d" % which in variables:
                    return pid
        raise AssertionError(f"instance {which} does not run")

    def alive(self):
        """Processes of the job other than poprun."""
        found = []
        place = f"TMPDIR={self.folder}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) != self.process.pid:
                with suppress(OSError):
                    marked = self.mark.encode() in (process / "cmdline").read_bytes()
                    if marked or place in (process / "environ").read_bytes():
                        found.append(int(process.name))
        return found

    def left(self):
        """Files and folders of the job, other than those of a host that has died."""
        dead = tuple(f".{name}." for name in (self.hosts.dead if self.hosts else ()))
        found = [
            str(path)
            for pattern in ("poprun-*", "ompi.*", "prte.*", "pmix*", "openmpi-*")
            for path in self.folder.glob(pattern)
            if not any(name in path.name for name in dead)
        ]
        roots = [self._holder.pid] if self._holder else []
        roots += [int(file.read_text()) for file in self.folder.glob("sshd*.pid")]
        for pid in roots:
            with suppress(OSError):  # the host is dead
                shared = Path(f"/proc/{pid}/root/dev/shm")
                if shared.stat().st_dev != Path("/dev/shm").stat().st_dev:  # the job's own
                    found += map(str, shared.iterdir())
        return found

    def end(self, timeout=30, grace=2):
        """Exit code and standard error; then checks that nothing is left within the grace."""
        _, errors = self.process.communicate(timeout=timeout)
        until = time.monotonic() + _BUSY * grace
        while (self.alive() or self.left()) and time.monotonic() < until:
            time.sleep(0.02)
        assert [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.alive()] == []
        assert not self.left(), (self.left(), errors.decode())
        return self.process.returncode, errors.decode()


def children(pid):
    return sorted(
        int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    )


def words_of(pid):
    """The command line of a process; no words where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
