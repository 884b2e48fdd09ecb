"""While a job runs, poprun and its guards do not listen, and show no secret."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.distributed.jobs import LAUNCHER, run_command

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
