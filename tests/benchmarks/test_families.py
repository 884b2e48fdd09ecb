import pytest

from benchmarks import imports, launcher, planning, sdk_names
from benchmarks.harness import Effort
from benchmarks.sampling import MeasurementError, Missing, Samples

QUICK = Effort(quick=True)


@pytest.fixture
def timed(monkeypatch):
    """Times without running: the n-th command takes n seconds; what was asked for is returned."""
    asked = {}

    def time_commands(commands, repetitions):
        asked.update(commands)
        return {
            name: command
            if isinstance(command, Missing)
            else Samples((float(place),) * repetitions)
            for place, (name, command) in enumerate(commands.items(), 1)
        }

    monkeypatch.setattr(launcher, "time_commands", time_commands)
    monkeypatch.setattr(imports, "time_commands", time_commands)
    monkeypatch.setattr(sdk_names, "time_commands", time_commands)
    return asked


def test_the_launcher_is_judged_against_mpirun_only(timed):
    rows = list(launcher.measure_launch(QUICK))
    assert [(row.peer, row.aim) for row in rows] == [
        ("mpirun", launcher.LAUNCH_AIM),
        ("torchrun", None),
        ("horovodrun", None),
    ]
    assert timed["poprun"][-5:] == ["--num-instances", "2", "--num-replicas", "2", "true"]
    assert timed["mpirun"][-3:] == ["-np", "2", "true"]


def test_many_instances_and_an_mpirun_that_does_not_always_end(monkeypatch):
    runs = iter([0.3, 0.4, 0.5, 0.2, MeasurementError("timed out"), 0.25])

    def time_command(*_):
        outcome = next(runs)
        if isinstance(outcome, MeasurementError):
            raise outcome
        return outcome

    monkeypatch.setattr(launcher, "time_command", time_command)
    [row] = launcher.measure_many(QUICK)
    assert (row.peer, row.value, row.peer_value) == ("mpirun", 300.0, 200.0)
    assert (row.aim, row.met) == (launcher.MANY_AIM, True)
    assert row.note == "mpirun did not end within 20 s in 1 of 3 runs"


def test_planning_is_judged_by_time_memory_and_growth(monkeypatch):
    # 2 s and 100 MB for all hosts, 0.4 s for a quarter of them.
    took = {planning._HOSTS: (2.0, 100.0), planning._HOSTS // 4: (0.4, 50.0)}
    monkeypatch.setattr(planning, "plan", took.get)
    time, growth, memory = planning.measure(QUICK)
    assert (time.value, time.met) == (2.0, False)
    assert (growth.ratio, growth.met) == (1.25, False)
    assert (memory.value, memory.unit, memory.met) == (100.0, "MB", True)


def test_a_launcher_that_is_not_installed_is_reported_and_not_faked(timed, monkeypatch):
    monkeypatch.setattr("benchmarks.ranks.find_poprun", lambda: None)
    monkeypatch.setattr("benchmarks.launcher.find_poprun", lambda: None)
    for measure in (launcher.measure_launch, launcher.measure_help):
        for row in measure(QUICK):
            assert row.value is None
            assert row.met is None
            assert "poprun is not installed" in row.note
    assert isinstance(timed["poprun"], Missing)


def test_the_sdks_names_are_judged_where_nothing_else_is_started(timed):
    rows = list(sdk_names.measure(QUICK))
    assert [(row.name, row.aim is None) for row in rows] == [
        ("bare Python, names enabled", False),
        ("import torch, names enabled", True),
        ("import tensorflow, names enabled", True),
    ]
    with_names, without = timed["with"], timed["without"]
    assert (with_names[2], without[2]) == ("POPDIST_STARTUP=sdk", "POPDIST_STARTUP=")
    assert with_names[3:] == without[3:]
    assert with_names[1].startswith("PYTHONPATH=")
    assert with_names[1].endswith(without[1][11:])


def test_help_and_imports_are_judged_against_bare_python(timed):
    [row] = launcher.measure_help(QUICK)
    assert (row.peer, row.difference, row.met) == ("bare Python", -1000.0, True)
    rows = {row.name: row for row in imports.measure(QUICK)}
    assert rows["import popdist"].aim is imports.IMPORT_AIM
    assert rows["import popdist"].peer == "bare Python"
    assert rows["import torch, popdist_torch"].peer == "import torch"
    assert timed["bare Python"][-1] == "pass"
    assert timed["import popdist"][-1] == "import popdist"
