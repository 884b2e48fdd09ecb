"""A running job with grandchildren, for tests of how jobs end."""

import os
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
print("ready", flush=True)
if len(sys.argv) > 2:
    time.sleep(0.5)
    os._exit(int(sys.argv[2]))
time.sleep(300)
"""


class Job:
    """A running job of two instances, each with a grandchild, all marked in their command lines."""

    def __init__(self, options, tmp_path, *words, program=STUBBORN):
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.folder = tmp_path
        self.process = subprocess.Popen(
            [*LAUNCHER, *options, "-np", "2",
             sys.executable, "-c", program, self.mark, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            start_new_session=True,
        )  # fmt: skip

    def clean_up(self):
        """Leaves nothing behind, whatever the test found."""
        for pid in [self.process.pid, *self.alive()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def until_ready(self):
        for _ in range(2):
            while (line := self.process.stdout.readline()) != b"ready\n":
                assert line == b"more\n", self.process.communicate()
        return self

    @property
    def mpirun(self):
        return children(self.process.pid)[0]

    def front(self, which):
        """The process that mpirun has started for an instance."""
        return children(self.mpirun)[which]

    @property
    def guard(self):
        return children(self.process.pid)[1]

    def program(self, which):
        return children(self.guard)[which]

    def alive(self):
        """Processes of the job other than poprun."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) != self.process.pid:
                with suppress(OSError):
                    if self.mark.encode() in (process / "cmdline").read_bytes():
                        found.append(int(process.name))
        return found

    def end(self, timeout=30, grace=2):
        """Exit code and standard error; then checks that nothing is left within the grace."""
        _, errors = self.process.communicate(timeout=timeout)
        until = time.monotonic() + grace
        while self.alive() and time.monotonic() < until:
            time.sleep(0.02)
        assert self.alive() == []
        if self.process.returncode == -signal.SIGKILL:
            # The folder around the pipe is mpirun's until it has ended.
            assert not list(self.folder.rglob("pipe"))
        else:
            assert not list(self.folder.glob("poprun-*"))
        return self.process.returncode, errors.decode()


def children(pid):
    return sorted(
        int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    )
