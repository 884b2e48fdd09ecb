import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.document import FORMAT, as_document
from benchmarks.document import as_json as document_json
from benchmarks.harness import Benchmark, Report, Result
from benchmarks.report import as_list, as_table, number
from benchmarks.rows import Aim, Row

AIM = Aim(sentence="at most twice memcpy", of="ratio", at_most=2.0)
MACHINE = {
    "description": "a machine",
    "load": {"average_at_start": 0.25, "average_at_end": 1.5},
}


def as_json(made):
    return document_json(as_document(made))


KEYS = {
    "benchmark",
    "name",
    "value",
    "unit",
    "median",
    "samples",
    "peer",
    "peer_value",
    "peer_median",
    "ratio",
    "difference",
    "aim",
    "met",
    "refused",
    "note",
    "parameters",
}


def row(**changes):
    fields = {
        "name": "popdist, 4 KiB",
        "unit": "us",
        "value": 3.0,
        "median": 4.0,
        "samples": 5,
        "peer": "memcpy",
        "peer_value": 2.0,
        "peer_median": 2.5,
        "aim": AIM,
        "parameters": {"bytes": 4096},
    }
    return Row(**{**fields, **changes})


def report(*rows, **changes):
    result = Result(**{"benchmark": "exchange", "rows": rows, "seconds": 2.0, **changes})
    return Report(machine=MACHINE, results=(result,))


NUMBERS = st.none() | st.just(0.0) | st.floats(1e-6, 1e12)


@given(NUMBERS, NUMBERS, st.none() | st.text(), st.text(), st.none() | st.just(AIM))
def test_any_row_becomes_valid_json_with_all_keys_and_one_line(value, peer, refused, note, aim):
    made = report(row(value=value, peer_value=peer, refused=refused, note=note, aim=aim))
    document = json.loads(as_json(made), parse_constant=pytest.fail)
    assert set(document) == {"format", "quick", "machine", "benchmarks", "rows"}
    assert document["format"] == FORMAT
    [record] = document["rows"]
    assert set(record) == KEYS
    assert (record["value"], record["met"]) == (value, made.results[0].rows[0].met)
    if value is not None and peer:
        assert record["ratio"] == value / peer


def test_the_table_shows_each_verdict_in_words():
    table = as_table(report(row(), row(peer="MPI", peer_value=1.0), row(refused="busy", peer="x")))
    assert "load average: 0.25 at start, 1.50 at end" in table
    verdicts = [line.rpartition("memcpy")[2].strip() for line in table.splitlines()[5:8]]
    assert verdicts == ["met", "NOT MET", "no verdict"]


def test_a_value_with_several_peers_is_shown_once_and_a_remark_too():
    table = as_table(report(row(note="by poprun"), row(note="by poprun", peer="MPI")))
    assert table.count("popdist, 4 KiB") == 2  # one row and one remark
    assert "  popdist, 4 KiB: by poprun" in table.splitlines()


def test_a_remark_of_several_lines_stays_below_its_row():
    table = as_table(report(row(note="not available:\nTraceback\n  inner")))
    assert "  popdist, 4 KiB: not available:\n      Traceback\n        inner" in table


def test_columns_line_up():
    table = as_table(report(row(), row(name="MPI", value=12345.6, peer="x", aim=None)))
    heading, first, second = table.splitlines()[4:7]
    for column in ("unit", "peer  "):
        at = heading.index(column)
        assert first[at - 1] == second[at - 1] == " "
        assert first[at] != " " != second[at]


def test_a_failure_stands_in_place_of_its_table():
    failed = report(error="no mpirun")
    assert "FAILED: no mpirun" in as_table(failed)
    assert json.loads(as_json(failed))["benchmarks"][0]["error"] == "no mpirun"


def test_a_quick_run_says_so():
    quick = Report(machine=MACHINE, results=(), quick=True)
    assert "quick run" in as_table(quick)
    assert json.loads(as_json(quick))["quick"] is True


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0.000"), (1.23456, "1.235"), (12.3456, "12.35"), (123.4, "123.4"),
     (12345.6, "12346")],
)  # fmt: skip
def test_numbers_have_four_digits_that_count(value, text):
    assert number(value) == text


def test_the_list_shows_names_and_aims():
    suite = [
        Benchmark(name="a", what="does a", measure=list, aims=(AIM,)),
        Benchmark(name="bcd", what="does b", measure=list),
    ]
    assert as_list(suite).splitlines() == [
        "a    does a",
        "       aim: at most twice memcpy",
        "bcd  does b",
    ]
