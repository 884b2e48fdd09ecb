"""The real thing, small: real mpirun and poprun jobs with all contenders."""

from importlib.util import find_spec

import pytest

from benchmarks.exchange.cases import KIB, MIB, Case
from benchmarks.exchange.comparison import compare_cases
from benchmarks.programs import find_mpirun

NEEDED = ("torch", "horovod", "mpi4py", "numpy")
MISSING = [name for name in NEEDED if find_spec(name) is None]

# Not smaller: samples of small sizes repeat the exchange, which takes long on a busy machine.
CASES = (Case(512 * KIB), Case(MIB, 1, "fresh"), Case(MIB, 4), Case(MIB, 1, "written"))
CONTENDERS = ("MPI", "MPI sliced", "torch gloo", "Horovod defaults", "popdist")


@pytest.mark.skipif(bool(MISSING) or not find_mpirun(), reason=f"needs {MISSING or 'mpirun'}")
def test_two_ranks_measure_every_contender_in_every_case():
    rows = list(compare_cases(CASES, repetitions=2, rounds=1))
    keys = [(row.name, row.peer) for row in rows]
    assert len(set(keys)) == len(keys)
    for case in CASES:
        for contender in CONTENDERS:
            assert (f"{contender}, {case.label}", "memcpy") in keys
    for row in rows:
        assert "not available" not in row.note
        assert row.unit == "us"
        assert 0 < row.value <= row.median
        assert 0 < row.peer_value <= row.peer_median
        assert row.ratio == row.value / row.peer_value
        both_windows_of_both_jobs = row.parameters["contender"] not in CONTENDERS[3:]
        assert row.samples == (8 if both_windows_of_both_jobs else 2)
    notes = {row.parameters["contender"]: row.note for row in rows}
    assert notes["Horovod defaults"].endswith("no Horovod settings")
    assert notes["popdist"].startswith("started by poprun")
