"""What instances note of their training: lines that stay few, and never disturb a program."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import popdist
from popdist import metrics
from popdist.errors import ArgumentError
from popdist.popdist_core import Topology


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

        def time(self):
            return 1e9 + self.now

    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


@pytest.fixture
def instance(monkeypatch, tmp_path):
    """Instance 1 of a job that is kept in a folder, which need not exist yet."""
    here = Topology(
        launched=True, num_total_replicas=2, num_instances=2, instance_index=1,
        replica_index_offset=1, run_folder=str(tmp_path / "run"),
    )  # fmt: skip
    monkeypatch.setattr(metrics, "topology", lambda: here)
    monkeypatch.setattr(metrics, "_lines", None)
    return tmp_path / "run" / "metrics.1.jsonl"


def kept(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_is_a_line_at_once(instance, clock):
    metrics.lines()
    clock.now += 0.5
    metrics.record(loss=0.25, samples=8)
    clock.now += 0.25
    metrics.record(loss=0.125)
    first, second = kept(instance)
    assert {key: first[key] for key in ("kind", "count", "seconds", "loss", "samples")} == {
        "kind": "step", "count": 1, "seconds": 0.5, "loss": 0.25, "samples": 8.0,
    }  # fmt: skip
    assert (second["seconds"], second["loss"], "samples" in second) == (0.25, 0.125, False)
    assert first["memory"] > 2**20


@given(st.lists(st.floats(1e-4, 10), min_size=1, max_size=300))
def test_lines_thin_out_and_nothing_is_lost(gaps):
    series = metrics.Series(sink := _Sink(), "exchange")
    now = series._began
    for gap in gaps:
        now += gap
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics.time, "perf_counter", lambda now=now: now)
            series.add(waited=gap / 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics.time, "perf_counter", lambda: now)
        series.flush()
    assert sum(line["count"] for line in sink.lines) == len(gaps)
    assert sum(line["waited"] for line in sink.lines) == pytest.approx(sum(gaps) / 2)
    assert sum(line["seconds"] for line in sink.lines) == pytest.approx(sum(gaps), abs=1e-3)


def test_a_day_of_steps_leaves_few_lines(clock):
    series = metrics.Series(sink := _Sink(), "step")
    for _ in range(86_400):
        clock.now += 1.0
        series.add(loss=1.0)
    series.flush()
    assert len(sink.lines) < 10_000
    assert sum(line["count"] for line in sink.lines) == 86_400
    assert {line["loss"] for line in sink.lines} == {1.0}


def test_without_a_kept_run_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metrics, "topology", Topology)
    monkeypatch.setattr(metrics, "_lines", None)
    metrics.record(loss=1.0)
    assert metrics.lines() is None
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_said_once_and_disturbs_nothing(instance, capsys):
    instance.parent.write_text("a file where the folder should be")
    for _ in range(3):
        metrics.record(loss=1.0)
    assert capsys.readouterr().err.count("no metrics are kept in") == 1


class _Sink:
    def __init__(self):
        self.lines = []

    def write(self, line):
        self.lines.append(line)


@pytest.fixture
def told(monkeypatch):
    """What the guard is told."""
    told = []
    monkeypatch.setattr(metrics, "tell_progress", lambda **facts: told.append(facts))
    monkeypatch.setattr(metrics, "_so_far", metrics._SoFar())
    return told


def test_progress_counts_steps_and_the_rate_since_the_first(instance, clock, told):
    popdist.report_progress(phase="compiling")
    for _ in range(3):
        clock.now += 0.5
        popdist.report_progress(total=10, loss=0.5, samples=16)
    popdist.report_progress(step=7)
    assert told[0] == {"phase": "compiling"}
    assert [facts["step"] for facts in told[1:]] == [1, 2, 3, 7]
    assert [facts["rate"] for facts in told[1:]] == [None, 32.0, 32.0, 32.0]
    assert told[1] == {"phase": "training", "step": 1, "total": 10, "loss": 0.5, "rate": None}
    metrics.lines().close()
    assert sum(line["samples"] for line in kept(instance) if "samples" in line) == 48


def test_progress_that_is_none_is_refused(told):
    for wrong in ({"step": -1}, {"samples": -5}, {"total": -1}, {"phase": "two words"}):
        with pytest.raises(ArgumentError, match="PD004"):
            popdist.report_progress(**wrong)
    assert told == []


def test_a_loss_that_costs_something_is_read_twice_a_second(clock, told, monkeypatch):
    monkeypatch.setattr(metrics, "_adapters", metrics._SoFar())
    read = []
    metrics.note_step(loss=lambda: read.append(clock.now) or 1.0)
    assert (read, told) == ([], [])  # nobody watches
    monkeypatch.setattr(metrics, "is_watched", lambda: True)
    for _ in range(9):
        clock.now += 0.25
        metrics.note_step(loss=lambda: read.append(clock.now) or float(len(read)), total=20)
    assert len(read) == 5
    assert [facts["loss"] for facts in told] == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert told[-1] == {"phase": "training", "step": 9, "total": 20, "loss": 5.0, "rate": None}
