"""What a second Unix user of the same machine can see and do while a job runs.

The other user is a child of this process that has given up root. What it must not get is refused by
the kernel, so the expected answer is always a `PermissionError`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT
from tests.distributed.test_security import family

STRANGER = 65534
SECRET = "s3cr3tvalue"
PROGRAM = (
    "import os, time\n"
    "open(os.environ['STARTED'] + os.environ['RANK'], 'w').close()\n"
    "time.sleep(300)"
)
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="NO SECOND USER: only root can become one"
)


def as_stranger(function, *arguments):
    """What a function returns that a second user calls; JSON values only."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            answer = function(*arguments)
            os.write(writer, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    os.waitpid(pid, 0)
    assert text, "the second user's attempt has failed itself"
    return json.loads(text)


def attempt(action, *arguments):
    """The name of the error with which the kernel refuses an action; else what was got."""
    try:
        return f"got {action(*arguments)!r}"
    except OSError as error:
        return type(error).__name__


def listed(folder):
    return [str(path) for path in folder.iterdir()]


class Running:
    """A job of root's in a folder for temporary files that everybody may write.

    Attributes:
        shared: The folder.
        process: poprun.
        processes: poprun and all that it has started.
    """

    def __init__(self):
        self.shared = Path(tempfile.mkdtemp(dir="/tmp", prefix="shared-"))
        self.shared.chmod(0o1777)
        self.victim = self.shared.with_name(f"{self.shared.name}-victim")
        self.victim.write_text("precious")
        self.victim.chmod(0o600)
        as_stranger(self._plant)
        self.process = subprocess.Popen(
            [*LAUNCHER, "-np", "2", "-x", f"API_TOKEN={SECRET}", f"--json={self.shared}/r.json",
             sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.shared),
                 "STARTED": f"{self.shared}/started"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT,
        )  # fmt: skip
        until = time.monotonic() + 60
        while len(list(self.shared.glob("started*"))) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        self.processes = family(self.process.pid)

    def _plant(self):
        """Links to a file of root's at all names that a careless launcher might write."""
        names = ["r.json", "r.json.tmp", *(f"r.json.{pid}" for pid in range(1, 3000))]
        for name in names:
            (self.shared / name).symlink_to(self.victim)
        return len(names)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def job():
    running = Running()
    yield running
    running.end()
    shutil.rmtree(running.shared)
    running.victim.unlink()


def refused(answers):
    assert answers  # else nothing was tried
    wrong = {name: answer for name, answer in answers.items() if answer != "PermissionError"}
    assert not wrong


def test_the_jobs_folder_and_its_pipes_are_closed(job):
    folders = [path for path in job.shared.glob("poprun-*") if path.is_dir()]
    assert len(folders) == 1
    inside = [*folders[0].iterdir()]
    assert inside

    def tries():
        found = {f"list {folders[0]}": attempt(listed, folders[0])}
        for path in inside:
            found[f"write {path}"] = attempt(os.open, path, os.O_WRONLY | os.O_NONBLOCK)
            found[f"read {path}"] = attempt(os.open, path, os.O_RDONLY | os.O_NONBLOCK)
        found["remove"] = attempt(folders[0].rename, f"{folders[0]}-mine")
        return found

    refused(as_stranger(tries))


def test_no_process_of_the_job_can_be_read_or_signalled(job):
    assert len(job.processes) >= 5  # poprun, mpirun, the guard and two programs

    def tries():
        found = {}
        for pid in job.processes:
            found[f"environ of {pid}"] = attempt(Path(f"/proc/{pid}/environ").read_bytes)
            found[f"files of {pid}"] = attempt(listed, Path(f"/proc/{pid}/fd"))
            found[f"signal {pid}"] = attempt(os.kill, pid, signal.SIGTERM)
        return found

    refused(as_stranger(tries))


def test_no_command_line_shows_the_secret(job):
    def tries():
        return [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in job.processes]

    lines = as_stranger(tries)
    assert any("popdist.poprun" in line for line in lines)
    assert not any(SECRET in line for line in lines)


def test_no_terminal_of_a_program_can_be_opened(job):
    files = [path for pid in job.processes for path in Path(f"/proc/{pid}/fd").iterdir()]
    links = [os.readlink(path) for path in files if path.is_char_device()]  # noqa: PTH115
    terminals = {link for link in links if link.startswith("/dev/pts/")}
    assert terminals  # the guard gives each program one

    def tries():
        return {path: attempt(os.open, path, os.O_RDWR | os.O_NOCTTY) for path in sorted(terminals)}

    refused(as_stranger(tries))


def test_the_result_does_not_go_through_a_planted_link(job):
    job.end()
    assert job.victim.read_text() == "precious"
    result = job.shared / "r.json"
    assert not result.is_symlink()
    assert json.loads(result.read_text())["exit_code"] == 143
    assert result.stat().st_uid == 0


def test_the_key_of_nodes_is_closed():
    from popdist.poprun.nodes.wire import read_key

    key = Path(tempfile.mkdtemp(dir="/tmp", prefix="config-"))
    key.chmod(0o755)
    try:
        read_key({"XDG_CONFIG_HOME": str(key)}, makes=True)
        files = [path for path in key.rglob("*") if path.is_file()]
        assert files
        refused(as_stranger(lambda: {str(path): attempt(path.read_bytes) for path in files}))
    finally:
        shutil.rmtree(key)


def test_a_call_of_popdist_run_cannot_be_reached():
    shared = Path(tempfile.mkdtemp(dir="/tmp", prefix="shared-"))
    shared.chmod(0o1777)
    code = (
        "import popdist, time\n"
        f"def f():\n    open('{shared}/started', 'w').close()\n    time.sleep(300)\n"
        "popdist.run(f, num_instances=1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(shared)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not (shared / "started").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        sockets = [path for path in shared.rglob("*") if path.is_socket()]
        assert sockets

        def tries():
            import socket

            found = {}
            for path in sockets:
                with socket.socket(socket.AF_UNIX) as mine:
                    found[str(path)] = attempt(mine.connect, str(path))
            return found

        refused(as_stranger(tries))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        shutil.rmtree(shared)
