"""Control groups of a job, where this system lets a process make some."""

import signal
import subprocess
import sys
import time

import pytest

from popdist.poprun.protocol import control_group
from popdist.poprun.protocol.control_group import Group, check, end_job
from popdist.poprun.protocol.own_folder import new_name

WAITS = [sys.executable, "-c", "import time; time.sleep(300)"]


def member(enter):
    """A process that enters a group, and waits."""
    return subprocess.Popen(WAITS, preexec_fn=enter)  # noqa: PLW1509 - no threads


def test_a_group_ends_with_all_its_members(own_group):
    job = new_name()
    first, second = Group(job, "0"), Group(job, "1")
    groups = (first, second, first)
    processes = [member(group.enter) for group in groups]
    outside = subprocess.Popen(WAITS)
    first.end(5)
    assert [processes[0].wait(5), processes[2].wait(5)] == [-signal.SIGKILL] * 2
    assert processes[1].poll() is None
    assert (own_group / f"{job}/1").is_dir()
    end_job(job, 5)
    assert processes[1].wait(5) == -signal.SIGKILL
    assert not (own_group / f"{job}").exists()
    assert outside.poll() is None
    outside.kill()
    outside.wait()
    second.end(0)  # it is gone, which is no error


def test_the_group_of_a_job_goes_with_its_last_instance(own_group):
    job = new_name()
    first, second = Group(job, "0"), Group(job, "1")
    first.end(1)
    assert (own_group / f"{job}").exists()
    second.end(1)
    assert not (own_group / f"{job}").exists()


def test_groups_of_killed_launchers_end_at_the_next_start(own_group, monkeypatch):
    used, unused, young, users = new_name(), new_name(), new_name(), "poprun-of-a-user"
    kept = Group(used, "0")
    for name in (unused, young, users):
        (own_group / f"{name}").mkdir()
    process = member(lambda: (own_group / unused / "cgroup.procs").write_text("0"))
    check()  # too young to be given up
    assert (own_group / f"{unused}").exists()
    (own_group / f"{young}").rmdir()
    now = time.time()
    monkeypatch.setattr(control_group, "time", lambda: now + 60)
    check()
    monkeypatch.undo()
    assert process.wait(5) == -signal.SIGKILL
    check()
    assert (own_group / f"{used}/0").exists()
    assert (own_group / f"{users}").exists()
    (own_group / f"{users}").rmdir()
    kept.end(1)
    end_job(unused, 1)
    assert not (own_group / f"{unused}").exists()


def test_other_names_are_left_alone(own_group):
    (own_group / "poprun-mine").mkdir()
    end_job("poprun-mine", 1)
    end_job("../x", 1)
    assert (own_group / "poprun-mine").exists()
    (own_group / "poprun-mine").rmdir()


def test_a_system_without_groups_says_so(monkeypatch):
    monkeypatch.setattr(control_group, "_MOUNTS", ("/nowhere",))
    with pytest.raises(OSError, match="no control groups of version 2"):
        check()
    end_job(new_name(), 1)
