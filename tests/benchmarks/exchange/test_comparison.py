import pytest

from benchmarks.exchange import comparison
from benchmarks.exchange.cases import KIB, MIB, Case
from benchmarks.exchange.comparison import HOROVOD_AIM, SLICED_AIM, Pool, compare_cases
from benchmarks.sampling import MeasurementError

BIG = Case(64 * MIB)
CONTENDERS = ("MPI", "MPI sliced", "torch gloo", "Horovod defaults", "popdist")


def answer(kind, *, memcpy=1.0, extra=0.0):
    """What one rank reports of one case; seconds are made up."""
    peers = {"memcpy": [memcpy], "MPI": [5.0], "MPI sliced": [2.0], "torch gloo": [8.0]}
    horovod = {"defaults": "Horovod defaults", "popdist": "popdist"}[kind]
    window = {name: [times[0] + extra] for name, times in peers.items()}
    during = {**window, horovod: [{"defaults": 6.0, "popdist": 1.5}[kind] + extra]}
    return {"windows": [[window], [during]], "cores": 2, "horovod": {"HOROVOD_X": kind}}


def rows(monkeypatch, job, case=BIG, rounds=1):
    monkeypatch.setattr(comparison, "_run_job", job)
    made = list(compare_cases([case], repetitions=1, rounds=rounds))
    return {(row.parameters["contender"], row.peer): row for row in made}


def test_every_contender_meets_memcpy_and_popdist_meets_everyone(monkeypatch):
    made = rows(monkeypatch, lambda kind, *_: [answer(kind), answer(kind)])
    assert set(made) == {
        *((name, "memcpy") for name in CONTENDERS),
        *(("popdist", name) for name in CONTENDERS[:-1]),
    }
    assert made["popdist", "memcpy"].ratio == 1.5
    assert made["popdist", "Horovod defaults"].ratio == 0.25
    assert made["popdist", "memcpy"].value == 1.5e6
    assert "HOROVOD_X=popdist" in made["popdist", "memcpy"].note
    assert "HOROVOD_X=defaults" in made["Horovod defaults", "memcpy"].note


def test_aims_belong_to_popdist_at_64_mib_in_memory_that_stays(monkeypatch):
    def job(kind, *_):
        return [answer(kind)]

    for case in (BIG, Case(64 * MIB, 16), Case(64 * MIB, 1, "written")):
        made = rows(monkeypatch, job, case)
        aims = {key: row.aim for key, row in made.items() if row.aim}
        several = {("popdist", "Horovod defaults"): HOROVOD_AIM} if case.tensors > 1 else {}
        assert aims == {("popdist", "MPI sliced"): SLICED_AIM, **several}
        assert all(made[key].met is True for key in aims)
    for case in (Case(16 * MIB), Case(64 * MIB, 1, "fresh")):
        assert not any(row.aim for row in rows(monkeypatch, job, case).values())


def test_a_sample_is_as_slow_as_its_slowest_rank(monkeypatch):
    made = rows(monkeypatch, lambda kind, *_: [answer(kind), answer(kind, extra=0.5)])
    assert made["MPI", "memcpy"].value == 5.5e6
    assert made["MPI", "memcpy"].peer_value == 1.5e6


def test_samples_of_all_jobs_and_windows_are_joined(monkeypatch):
    made = rows(monkeypatch, lambda kind, *_: [answer(kind)], rounds=3)
    assert made["MPI", "memcpy"].samples == 12  # 3 rounds of 2 jobs with 2 windows each
    assert made["popdist", "memcpy"].samples == 3


def test_the_kinds_of_jobs_take_turns_at_being_first(monkeypatch):
    order = []
    rows(monkeypatch, lambda kind, *_: order.append(kind) or [answer(kind)], rounds=3)
    assert order == ["defaults", "popdist", "popdist", "defaults", "defaults", "popdist"]


def test_jobs_between_which_memcpy_moved_are_not_compared(monkeypatch):
    speeds = iter([1.0, 1.5])
    made = rows(monkeypatch, lambda kind, *_: [answer(kind, memcpy=next(speeds))])
    row = made["popdist", "MPI sliced"]
    assert row.met is None
    assert row.refused == "memcpy moved by 1.50 between jobs (at most 1.25 accepted)"


def test_drift_is_judged_by_the_best_of_a_jobs_windows():
    pool = Pool(Case(4 * KIB))
    pool.add([{"memcpy": [9.0, 1.0]}, {"memcpy": [5.0]}])
    pool.add([{"memcpy": [7.0]}, {"memcpy": [1.1]}])
    assert pool.memcpy == [1.0, 1.1]
    assert pool.distrust() is None


def test_one_kind_of_job_that_fails_leaves_the_others_rows(monkeypatch):
    calls = []

    def job(kind, *_):
        calls.append(kind)
        if kind == "popdist":
            raise MeasurementError("poprun is not installed")
        return [answer(kind)]

    made = rows(monkeypatch, job, rounds=2)
    assert calls.count("popdist") == 1
    assert made["Horovod defaults", "memcpy"].ratio == 6.0
    row = made["popdist", "MPI sliced"]
    assert (row.value, row.met) == (None, None)
    assert row.note == row.refused == "not available: poprun is not installed"


def test_where_no_job_works_the_benchmark_fails_with_all_reasons(monkeypatch):
    def job(kind, *_):
        raise MeasurementError(f"{kind} is broken")

    with pytest.raises(MeasurementError, match="defaults is broken\npopdist is broken"):
        rows(monkeypatch, job)
