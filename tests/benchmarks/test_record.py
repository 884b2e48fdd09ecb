"""Records: what is kept of runs, how parts are replaced, and what the page makes of them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks import charts, record
from benchmarks.document import as_document
from benchmarks.harness import Benchmark, Report, Result
from benchmarks.rows import Aim, Row
from benchmarks.sampling import MeasurementError

ROOT = Path(__file__).resolve().parents[2]
AIM = Aim(sentence="at most twice memcpy", of="ratio", at_most=2.0)
MACHINE = {
    "description": "a machine",
    "cpu": "AMD EPYC (2nd) @ 2.0GHz",
    "cores": 2,
    "memory_gib": 23.4,
    "python": "3.11.1",
    "mpirun": "4.1.8",
    "versions": {"torch": "2.13"},
    "commit": "abc",
    "load": {"average_at_start": 0.0, "average_at_end": 0.0},
}
ORDER = ("first", "second", "third")


def document(*results, quick=False, **facts):
    return as_document(Report(machine={**MACHINE, **facts}, results=results, quick=quick))


def result(name, value=1.0, error=None):
    row = Row(name=f"row of {name}", unit="ms", value=value, peer="p", peer_value=1.0, aim=AIM)
    rows = () if error else (row,)
    return Result(benchmark=name, rows=rows, error=error, measured="2026-01-02T03:04:05Z")


def opened(folder, *, part=False, **facts):
    return record.Record(folder, {**MACHINE, **facts}, part=part, order=ORDER)


def values(path):
    return {row["benchmark"]: row["value"] for row in record.load(path)["rows"]}


def test_a_machine_has_a_folder_named_by_what_it_is():
    assert record.slug(MACHINE) == "amd-epyc-2nd-2-0ghz-2-cores-23-gib"


def test_a_part_replaces_its_part_of_the_newest_record_and_keeps_the_order(tmp_path):
    opened(tmp_path).save(document(result("first"), result("third")))
    part = opened(tmp_path, part=True)
    part.save(document(result("second", 2.0), result("third", 3.0)))
    assert values(part.path) == {"first": 1.0, "second": 2.0, "third": 3.0}
    assert [one["name"] for one in record.load(part.path)["benchmarks"]] == list(ORDER)


def test_a_failure_does_not_replace_what_was_measured_before(tmp_path):
    opened(tmp_path).save(document(result("first"), result("second", error="broken")))
    again = opened(tmp_path, part=True)
    again.save(document(result("first", error="no mpirun"), result("second", error="still")))
    assert values(again.path) == {"first": 1.0}
    errors = {one["name"]: one["error"] for one in record.load(again.path)["benchmarks"]}
    assert errors == {"first": None, "second": "still"}


def test_other_versions_and_other_machines_never_share_a_record(tmp_path):
    first = opened(tmp_path)
    first.save(document(result("first")))
    newer = opened(tmp_path, part=True, versions={"torch": "2.14"})
    assert newer.path != first.path
    newer.save(document(result("second"), versions={"torch": "2.14"}))
    assert opened(tmp_path, cores=4).path.parent != first.path.parent
    assert record.records(first.path.parent) == [first.path, newer.path]
    assert opened(tmp_path, part=True).path == first.path


def test_a_file_that_is_no_record_is_named(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"format": 99}')
    with pytest.raises(ValueError, match=r"x\.json is no record"):
        record.load(path)


def works(_):
    yield Row(name="popdist", unit="ms", value=1.0, peer="mpirun", peer_value=0.8, aim=AIM)
    yield Row(name="alone", unit="ms", value=1.0)


def breaks(_):
    raise MeasurementError("no mpirun")


def test_a_recorded_run_keeps_each_part_as_soon_as_it_is_there(tmp_path, monkeypatch, capsys):
    def looks(_):
        [path] = tmp_path.glob("*/*.json")
        yield Row(
            name="kept so far", unit="ms", value=float(len(json.loads(path.read_text())["rows"]))
        )

    suite = tuple(
        Benchmark(name=name, what=name, measure=measure, aims=(AIM,))
        for name, measure in (("works", works), ("breaks", breaks), ("looks", looks))
    )
    monkeypatch.setattr(command_line, "SUITE", suite)
    monkeypatch.setattr(charts, "SUITE", suite)
    assert command_line.main(["--quick", "--record", str(tmp_path)]) == 1
    [path] = tmp_path.glob("*/*.json")
    kept = json.loads(path.read_text())
    assert [one["error"] for one in kept["benchmarks"]] == [None, "no mpirun", None]
    assert kept["rows"][-1]["value"] == 2.0
    assert "min remain" in capsys.readouterr().err
    [picture] = tmp_path.glob("*/*/*.png")
    assert picture.name == "works.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_shows_what_it_has(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    suite = tuple(
        Benchmark(name=name, what=name, measure=measure)
        for name, measure in (("works", works), ("slow", interrupted))
    )
    monkeypatch.setattr(command_line, "SUITE", suite)
    assert command_line.main(["--quick", "--record", str(tmp_path)]) == 130
    assert [path.name for path in tmp_path.glob("*/*/*.png")] == ["works.png"]


def test_a_quick_run_is_not_published(capsys):
    with pytest.raises(SystemExit):
        command_line.main(["--quick", "--record"])
    assert "full runs" in capsys.readouterr().err


def test_the_exchange_is_drawn_over_all_sizes(tmp_path):
    rows = [
        Row(
            name=f"popdist {size} {buffers}", unit="us", value=2.0, peer="memcpy", peer_value=1.0,
            parameters={"contender": "popdist", "bytes": size, "tensors": 1, "buffers": buffers},
        )
        for size in (2**12, 2**26)
        for buffers in ("reused", "written")
    ]  # fmt: skip
    made = document(Result(benchmark="exchange", rows=tuple(rows)))
    assert [path.name for path in charts.draw(made, tmp_path)] == [
        "exchange-sizes.png",
        "exchange.png",
    ]


def tables():
    path = ROOT / "docs" / "benchmark_tables.py"
    spec = importlib.util.spec_from_file_location("benchmark_tables", path)
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_page_shows_every_aim_with_its_verdict_or_why_there_is_none(tmp_path, monkeypatch):
    page = tables()
    monkeypatch.setattr(page, "newest", lambda: record.newest(tmp_path))
    monkeypatch.setattr(page, "ROOT", tmp_path)
    suite = [Benchmark(name=name, what=name, measure=works, aims=(AIM,)) for name in ORDER]
    monkeypatch.setattr(page, "SUITE", suite)
    assert page.aims_table() == page.pictures() == "No full run has been recorded yet."
    opened(tmp_path).save(document(result("first", 3.0), result("second", error="broken")))
    text = page.aims_table()
    assert (
        "| `first` | row of first | 3.000 ms | p | 1.000 ms | 3.000 | at most twice memcpy "
        "| **not met** |" in text
    )
    assert "| `second` | - | - | - | - | - | at most twice memcpy | failed |" in text
    assert "| `third` | - | - | - | - | - | at most twice memcpy | not run |" in text
    assert "Of 1 rows with an aim 0 are met and 1 are not." in text


def test_a_chart_shows_a_value_its_peers_and_what_an_aim_asks_in_the_same_unit(monkeypatch):
    aims = (
        Aim(sentence="at most 60 ms more", of="difference", at_most=60.0),
        Aim(sentence="at most twice", of="ratio", at_most=2.0),
    )
    monkeypatch.setattr(
        charts, "SUITE", [Benchmark(name="works", what="it", measure=works, aims=aims)]
    )
    rows = [
        Row(name="start", unit="ms", value=117.0, peer="mpirun", peer_value=58.0, aim=aims[0]),
        Row(name="start", unit="ms", value=117.0, peer="torchrun", peer_value=1578.0, aim=aims[1]),
        Row(name="hidden", unit="%", value=58.0),
    ]
    made = document(Result(benchmark="works", rows=tuple(rows)))
    start, hidden = charts.groups(made["rows"])
    assert start.peers == {"mpirun": 58.0, "torchrun": 1578.0}
    assert start.bounds == {"mpirun": 118.0, "torchrun": 3156.0}
    assert start.is_best  # mpirun is a limit: it does less
    assert (hidden.peers, hidden.wants_more) == ({}, True)


@pytest.mark.parametrize(
    ("name", "peers", "wants_more", "color"),
    [
        ("popdist model: step", {"DDP": 11.0, "1 rank": 5.0}, False, charts._BEST),
        ("popdist model: step", {"DDP": 9.0, "1 rank": 5.0}, False, charts._NOT_BEST),
        ("share hidden", {"DDP": 9.0}, True, charts._BEST),
        ("import horovod.torch", {"import torch": 9.0}, False, charts._PEER),
        ("import torch, popdist_torch", {"import torch": 9.0}, False, charts._NO_RIVAL),
        ("step", {"matrix products alone": 5.0}, False, charts._NO_RIVAL),
        ("step", {"the same step without an exchange": 5.0}, False, charts._NO_RIVAL),
        ("step", {"an exchange beside DDP": 5.0, "DDP": 12.0}, False, charts._BEST),
        ("update", {"torch, fused": 11.0, "without blocks": 9.0}, False, charts._NOT_BEST),
        ("plain torch: step, 2 ranks that exchange nothing", {"1 rank": 9.0}, False, charts._LIMIT),
    ],
)
def test_a_bar_s_colour_says_whether_a_rival_is_better(name, peers, wants_more, color):
    assert charts.Group(name, "ms", 10.0, peers, {}, wants_more).color == color


def test_the_picture_at_the_top_shows_the_headlines_that_a_run_has(tmp_path):
    rows = tuple(
        Row(name=name, unit="ms", value=2.0, peer="torchrun", peer_value=9.0)
        for name in ("poprun 2 x true", "a row that is no headline")
    )
    made = document(Result(benchmark="launcher", rows=rows))
    drawn = charts.draw(made, tmp_path)
    assert [path.name for path in drawn] == ["overview.png", "launcher.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_the_picture_at_the_top_has_no_aims():
    _, kept = record.newest()
    headlines = charts._headlines(kept["rows"])
    assert len(headlines) == len(charts._HEADLINES)
    assert all(group.peers and not group.bounds for _, group in headlines)
    launches = [row for row in kept["rows"] if row["benchmark"] == "launcher"]
    assert any(group.bounds for group in charts.groups(launches))
