"""Tests that fail beside others get one more try, and both tries are reported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os
import pytest

@pytest.mark.parametrize("index", range({number}))
def test_row(index):
    assert {passes}

def test_other():
    pass
"""


@pytest.mark.parametrize(
    ("files", "number", "passes", "code", "last"),
    [
        (1, 1, "'POPDIST_TESTS_AGAIN' in os.environ", 0, "1 passed"),
        (1, 1, "False", 1, "1 failed"),
        (1, 9, "'POPDIST_TESTS_AGAIN' in os.environ", 0, "9 passed"),
        (6, 1, "'POPDIST_TESTS_AGAIN' in os.environ", 1, "6 failed, 6 passed"),
        (1, 1, "True", 0, "2 passed"),
    ],
    ids=["passes-alone", "fails-again", "one-file", "many-files", "passes"],
)
def test_a_second_try_decides_only_for_few_files(tmp_path, files, number, passes, code, last):
    for file in range(files):
        program = PROGRAM.format(number=number, passes=passes)
        (tmp_path / f"test_rows_{file}.py").write_text(program)
    cache = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    cache.parent.mkdir(parents=True)
    cache.write_text('{"test_removed.py::test_row": true}')  # of an earlier run
    done = subprocess.run(
        [sys.executable, "-m", "tests.again", "-p", "xdist", "."],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert last in done.stdout.splitlines()[-1]
    assert ("== once more, alone: test_rows_0.py::test_row[0]" in done.stdout) == (
        files == 1 and passes != "True"
    )
