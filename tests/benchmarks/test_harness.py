import pytest

from benchmarks import harness
from benchmarks.harness import Benchmark, Effort, UnknownBenchmarkError, run, select
from benchmarks.rows import Aim, Row
from benchmarks.sampling import MeasurementError
from benchmarks.suite import SUITE

AIM = Aim(sentence="at most 1 ms", of="value", at_most=1.0)


def rows(effort):
    yield Row(name="quick" if effort.quick else "full", unit="ms", value=0.5, aim=AIM)


def broken(effort):
    yield from rows(effort)
    raise MeasurementError("no mpirun")


GOOD = Benchmark(name="good", what="works", measure=rows, aims=(AIM,))
BAD = Benchmark(name="bad", what="does not", measure=broken)


def test_names_in_the_suite_are_unique_and_described():
    names = [benchmark.name for benchmark in SUITE]
    assert len(set(names)) == len(names)
    assert all(benchmark.what for benchmark in SUITE)


def test_a_selection_keeps_the_order_of_the_suite():
    assert select([GOOD, BAD], []) == [GOOD, BAD]
    assert select([GOOD, BAD], ["bad", "good", "bad"]) == [GOOD, BAD]
    assert select([GOOD, BAD], ["bad"]) == [BAD]


@pytest.mark.parametrize(
    ("name", "advice"), [("godo", "did you mean 'good'"), ("xyz", "there are: good, bad")]
)
def test_an_unknown_name_gets_advice(name, advice):
    with pytest.raises(UnknownBenchmarkError, match=advice):
        select([GOOD, BAD], ["good", name])


@pytest.mark.parametrize("quick", [True, False])
def test_effort_reaches_the_benchmark_and_the_report(quick):
    report = run([GOOD], Effort(quick=quick), lambda _: None)
    assert [row.name for row in report.results[0].rows] == ["quick" if quick else "full"]
    assert report.quick is quick
    assert Effort(quick=quick).choose(full=9, quick=3) == (3 if quick else 9)


def test_a_benchmark_that_fails_does_not_keep_the_others_from_running():
    told = []
    report = run([BAD, GOOD], Effort(), told.append)
    bad, good = report.results
    assert bad.error == "no mpirun"
    assert [row.name for row in bad.rows] == ["full"]
    assert good.error is None
    assert len(good.rows) == 1
    assert any("no mpirun" in line for line in told)


@pytest.mark.parametrize(("reason", "met"), [(None, True), ("busy machine: a compiler", None)])
def test_a_busy_machine_takes_the_verdict_and_leaves_the_number(monkeypatch, reason, met):
    monkeypatch.setattr(harness, "busy_reason", lambda *_: reason)
    result = run([GOOD], Effort(), lambda _: None).results[0]
    assert result.busy == reason
    assert result.rows[0].met is met
    assert result.rows[0].refused == reason
    assert result.rows[0].value == 0.5


def test_load_averages_are_recorded():
    load = run([GOOD], Effort(), lambda _: None).machine["load"]
    assert set(load) == {"average_at_start", "average_at_end"}


def test_a_defect_in_one_benchmark_does_not_lose_the_others():
    def defect(_):
        raise ZeroDivisionError("by 0")

    wrong = Benchmark(name="wrong", what="is wrong", measure=defect)
    saved = []
    run([wrong, GOOD], Effort(), lambda _: None, saved.append)
    assert [len(report.results) for report in saved] == [1, 2]
    assert saved[1].results[0].error == "ZeroDivisionError: by 0"
    assert saved[1].results[1].rows


def test_what_remains_is_what_was_declared_and_more_where_it_took_longer():
    suite = [
        Benchmark(name=n, what=n, measure=rows, seconds=s)
        for n, s in zip("abc", (10, 20, 60), strict=True)
    ]
    remaining = harness.Remaining(suite, Effort())
    assert remaining.seconds() == 90
    assert str(remaining) == "about 2 min remain"
    remaining.took(20)
    assert remaining.seconds() == 160
    remaining.took(1)  # faster than declared: no promise
    assert remaining.seconds() == 60
