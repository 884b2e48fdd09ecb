"""While a job runs, neither poprun nor a guard listens on anything."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from tests.distributed.jobs import LAUNCHER

LISTENING = "0A"


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
