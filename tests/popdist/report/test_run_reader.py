"""Folders in any state: whole, partial, damaged, and none at all."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist.errors import LaunchError
from popdist.report.__main__ import main
from popdist.report.page import page
from popdist.report.run_reader import read_run
from tests.popdist.report import runs

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


def test_a_whole_folder_has_everything(tmp_path):
    trace = [
        {"ph": "B", "name": "MPI_ALLREDUCE", "ts": 10, "pid": 0, "tid": 1},
        {"ph": "E", "ts": 5010, "pid": 0, "tid": 1},
        {"ph": "X", "name": "NEGOTIATE_ALLREDUCE: waits for the others", "pid": 1, "dur": 2e6},
    ]
    timeline = tmp_path / "trace.json"
    timeline.write_text(json.dumps({"traceEvents": trace}))
    result = runs.job(timeline=str(timeline))
    folder = runs.write(tmp_path / "run", result=result, noted={i: runs.metrics(i) for i in (0, 1)})
    run = read_run(folder)
    assert run.gaps == []
    assert run.instances == [0, 1]
    assert [len(run.steps[0]), len(run.exchanges[1]), len(run.trace)] == [20, 20, 3]


def test_what_is_missing_is_said_with_how_to_have_it(tmp_path):
    folder = runs.write(tmp_path / "run", errors={0: "", 3: "Traceback\nValueError: bad\n"})
    run = read_run(folder)
    assert run.instances == [0, 3]
    said = "\n".join(run.gaps)
    for what in ("job.json is missing", "popdist.metrics.record", "--timeline FILE"):
        assert what in said
    assert "ValueError: bad" in page(run)


def test_lines_and_traces_that_were_cut_off_are_left_out(tmp_path):
    folder = runs.write(tmp_path / "run", noted={0: runs.metrics(0, 3)})
    path = folder / "metrics.0.jsonl"
    path.write_text(path.read_text() + '{"kind": "step", "time": 1.0, "cou')
    (folder / "timeline.json").write_text('{"traceEvents": [{"ph": "M", "pid": 0}, {"ph": "B", "na')
    run = read_run(folder)
    assert len(run.steps[0]) == 3
    assert run.trace == [{"ph": "M", "pid": 0}]
    assert any("cannot be read are left out: 1" in gap for gap in run.gaps)
    assert any("timeline.json is cut off" in gap for gap in run.gaps)


def test_after_restarts_the_last_start_counts(tmp_path):
    folder = runs.write(tmp_path / "run", result=runs.job(), noted={0: runs.metrics(0, 5)})
    for restart, steps in ((2, 3), (10, 4)):
        runs.write(folder / f"restart.{restart}", noted={0: runs.metrics(0, steps)})
    assert len(read_run(folder).steps[0]) == 4


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(runs.job())), JSON), st.lists(JSON | st.text(max_size=9))
)
def test_no_damage_brings_a_page_down(tmp_path_factory, changes, lines):
    folder = runs.write(tmp_path_factory.mktemp("run"), result=runs.job(**changes))
    mixed = [
        *map(json.dumps, [*lines, *runs.metrics(0, 2)]),
        *filter(lambda x: isinstance(x, str), lines),
    ]
    (folder / "metrics.0.jsonl").write_text("\n".join(mixed), errors="replace")
    assert "</html>" in page(read_run(folder))


@pytest.mark.parametrize(
    ("make", "what", "hint"),
    [
        (lambda _: None, "does not exist", "ls the folder"),
        (lambda path: path.write_text(""), "is a file and no folder", "ls the folder"),
        (lambda path: path.mkdir(), "holds nothing of a run", "poprun --log-dir DIR"),
        (
            lambda path: runs.write(path / "20260102-030405-python", result=runs.job()),
            "holds runs and is none itself",
            "python -m popdist.report",
        ),
    ],
)
def test_a_wrong_folder_is_refused_with_what_to_do(tmp_path, capsys, make, what, hint):
    path = tmp_path / "folder"
    make(path)
    assert main([str(path)]) == 2
    said = capsys.readouterr().err
    assert "PD140" in said
    assert what in said
    assert hint in said


def test_a_page_that_cannot_be_written_and_a_trace_that_is_not_there_are_refused(tmp_path, capsys):
    folder = runs.write(tmp_path / "run", result=runs.job())
    assert main([str(folder), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "the page cannot be written" in capsys.readouterr().err
    with pytest.raises(LaunchError, match="the timeline does not exist"):
        read_run(folder, tmp_path / "none.json")


def test_a_page_that_is_watched_loads_anew_until_the_job_has_ended(tmp_path, monkeypatch):
    folder = runs.write(tmp_path / "run", noted={0: runs.metrics(0)})
    pages = []

    def wait(seconds):
        pages.append((folder / "report.html").read_text())
        if len(pages) == 2:
            runs.write(folder, result=runs.job(1), noted={0: runs.metrics(0)})
        assert seconds == 3.0

    monkeypatch.setattr("popdist.report.__main__.time.sleep", wait)
    assert main([str(folder), "--watch=3"]) == 0
    pages.append((folder / "report.html").read_text())
    assert ['http-equiv="refresh" content="3"' in page for page in pages] == [True, True, False]


def test_the_page_goes_into_the_folder_unless_told_otherwise(tmp_path, capsys):
    folder = runs.write(tmp_path / "run", result=runs.job())
    assert main([str(folder)]) == 0
    out, err = capsys.readouterr()
    assert Path(out.strip()) == folder / "report.html"
    assert "missing: no instance noted losses" in err
