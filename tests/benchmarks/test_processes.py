import sys

import pytest

from benchmarks.processes import time_command, time_commands
from benchmarks.ranks import environment
from benchmarks.sampling import MeasurementError, Missing

PASS = [sys.executable, "-c", "pass"]
FAIL = [sys.executable, "-c", "import sys; sys.exit('one\\ntwo words')"]


def test_commands_that_work_have_samples_and_the_others_a_reason():
    gap = Missing("not installed")
    times = time_commands({"fails": FAIL, "works": PASS, "is not there": gap}, repetitions=3)
    assert list(times) == ["fails", "works", "is not there"]
    assert times["fails"] == Missing("exit code 1: two words")
    assert len(times["works"].seconds) == 3
    assert times["is not there"] == gap


def test_a_program_that_does_not_exist_is_named():
    with pytest.raises(MeasurementError, match="/nonexistent/program"):
        time_command(["/nonexistent/program"], environment())


def test_what_is_measured_inherits_no_settings_of_a_job(monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "0.1")
    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "2")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("SOMETHING_ELSE", "kept")
    found = environment({"ADDED": "yes"})
    assert "HOROVOD_CYCLE_TIME" not in found
    assert "POPDIST_NUM_TOTAL_REPLICAS" not in found
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert found["SOMETHING_ELSE"] == "kept"
    assert found["ADDED"] == "yes"
    assert found["OMP_NUM_THREADS"] == "1"
