import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks.harness import Benchmark
from benchmarks.rows import Row
from benchmarks.sampling import MeasurementError

ROOT = Path(__file__).resolve().parents[2]


def rows(effort):
    yield Row(name="row", unit="ms", value=1.0 if effort.quick else 2.0)


def broken(_):
    raise MeasurementError("no mpirun")


@pytest.fixture(autouse=True)
def suite(monkeypatch):
    entries = (
        Benchmark(name="good", what="works", measure=rows),
        Benchmark(name="bad", what="does not", measure=broken),
    )
    monkeypatch.setattr(command_line, "SUITE", entries)


def test_the_table_goes_to_standard_output_and_progress_to_standard_error(capsys):
    assert command_line.main(["--only", "good"]) == 0
    out, err = capsys.readouterr()
    assert "== good" in out
    assert "[1/1] good: works" in err


def test_json_on_standard_output_is_alone_there(capsys):
    assert command_line.main(["--only", "good", "--quick", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["quick"] is True
    assert document["rows"][0]["value"] == 1.0
    assert "== good" in err


def test_json_in_a_file_leaves_the_table_where_it_was(tmp_path, capsys):
    path = tmp_path / "result.json"
    assert command_line.main(["--only", "good", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["rows"][0]["value"] == 2.0
    assert "== good" in capsys.readouterr().out


def test_a_benchmark_that_could_not_be_measured_fails_the_run(capsys):
    assert command_line.main([]) == 1
    assert "FAILED: no mpirun" in capsys.readouterr().out


def test_listing_runs_nothing(capsys):
    assert command_line.main(["--list"]) == 0
    assert capsys.readouterr().out == "good  works\nbad   does not\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "godo"], "did you mean 'good'?"),
        (["--only", "godo", "--list"], "did you mean 'good'?"),
        (["--only"], "expected one argument"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["--json", "/nonexistent/folder/result.json"], "/nonexistent/folder"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_advice_before_anything_runs(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert said in err
    assert not out


def test_the_real_suite_lists_without_importing_a_framework():
    code = (
        "import sys\nfrom benchmarks.__main__ import main\nmain(['--list'])\n"
        "assert not {'torch', 'numpy', 'mpi4py', 'popdist'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("launcher", "help", "import", "exchange"):
        assert f"{name} " in done.stdout
