"""Spans of a merged trace, whose instance may have been killed."""

from popdist.poprun.output.timeline import _Instance

RECORDED = [
    {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "gradient"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "pid": 7, "ts": 10.0},
    {"ph": "X", "name": "1", "pid": 7, "ts": 12.0, "dur": 0},
]


def test_spans_that_a_killed_instance_has_left_open_end_with_it():
    events = list(_Instance(0, {0, 1, 2}).moved(RECORDED, 50.0))
    assert [(e["ph"], e["pid"], e["ts"]) for e in events if e["ph"] in "BE"] == [
        ("B", 0, 10.0),
        ("E", 0, 50.0),
    ]
    [wait] = [e for e in events if e["ph"] == "X"]
    assert (wait["pid"], wait["ts"], wait["dur"]) == (1, 12.0, 38.0)


def test_spans_that_have_ended_end_once_and_nested_ones_each():
    inner = [
        {"ph": "E", "pid": 7, "ts": 20.0},
        {"ph": "B", "name": "ALLREDUCE", "pid": 7, "ts": 21.0},
        {"ph": "B", "name": "MPI_ALLREDUCE", "pid": 7, "ts": 90.0},
    ]
    events = list(_Instance(0, {0, 1}).moved([*RECORDED, *inner], 50.0))
    assert [(e["ph"], e["ts"]) for e in events if e["ph"] in "BE"] == [
        ("B", 10.0), ("E", 20.0), ("B", 21.0), ("B", 90.0), ("E", 90.0), ("E", 90.0),
    ]  # fmt: skip
    assert [e["dur"] for e in events if e["ph"] == "X"] == [8.0]
