"""The rows from measured times, and what a record becomes: constants, curves and a picture."""

import pytest

from benchmarks import charts
from benchmarks.document import as_document
from benchmarks.growth import comparison, curves
from benchmarks.growth.comparison import LARGE, SMALL
from benchmarks.harness import Report, Result
from benchmarks.sampling import Missing, Samples


def measured(compute, message, small, large):
    """Times of one number of ranks, in seconds; the step is what the model says of two ranks."""
    seconds = {
        "compute": compute, "message": message, str(SMALL): small, str(LARGE): large,
        "step": compute + large,
    }  # fmt: skip
    return {name: Samples((value,)) for name, value in seconds.items()}


@pytest.fixture
def rows():
    times = {
        1: {"compute": Samples((0.04,)), "step": Samples((0.04,))},
        2: measured(0.04, 1e-5, 2e-4, 0.01),
        4: measured(0.1, 2e-5, 4e-4, 0.06),
        8: Missing("no end in 300 s"),
    }
    return list(comparison.rows(times, cores=2))


def test_each_number_of_ranks_meets_the_model(rows):
    found = {row.name: row for row in rows}
    assert found["constant: overhead"].value == pytest.approx(190)
    assert found["step, 2 ranks"].ratio == pytest.approx(1)
    assert "exchange of 16 MiB, 1 rank" not in found
    # Four ranks on two cores compute for twice as long; their ring has three times the messages.
    assert found["compute, 4 ranks"].peer_value == pytest.approx(80)
    assert found["compute, 4 ranks"].ratio == pytest.approx(1.25)
    assert found["compute, 4 ranks"].note == "4 ranks share 2 cores"
    eight = found["step, 8 ranks"]
    assert eight.value is None
    assert "no end in 300 s" in eight.note


def test_a_record_gives_back_the_constants_and_its_curves(rows, tmp_path):
    result = Result(benchmark="growth", rows=tuple(rows))
    record = as_document(Report(machine={}, results=(result,)))
    known = curves.constants(record)
    assert (known.compute, known.cores) == (pytest.approx(0.04), 2)
    assert known.local.latency == pytest.approx(5e-6)
    for network in curves.NETWORKS:
        times = dict(curves.predicted(known, network))
        assert set(times) == {2**power for power in range(14)}
        assert set(times[1].values()) == {known.compute}
        assert times[8192]["hierarchical"] <= times[8192]["ring"]
        assert all(t["overlapped"] <= t["hierarchical"] for t in times.values())
    assert [path.name for path in charts.draw(record, tmp_path)] == [
        "growth-model.png",
        "growth.png",
    ]


def test_without_the_benchmark_there_is_no_model():
    assert curves.constants({"rows": []}) is None
