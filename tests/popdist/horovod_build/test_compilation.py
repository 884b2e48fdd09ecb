import os
import sys
from dataclasses import replace

import pytest

from popdist.errors import BuildError
from popdist.horovod_build import compilation
from popdist.horovod_build.plan import make_plan
from tests.popdist.horovod_build.samples import facts, options


def plan(script):
    return replace(make_plan(facts(), options()), command=(sys.executable, "-c", script, "{out}"))


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def build(script, tmp_path, out, **choices):
    log = tmp_path / "build.log"
    chosen = {"verbose": False, **choices}
    return compilation.build(plan(script), tmp_path, out, log, dict(os.environ), **chosen), log


def test_the_wheel_is_returned_and_the_output_kept(tmp_path, out):
    script = (
        "import sys, pathlib; print('[1/2] Building a.cc.o'); "
        "(pathlib.Path(sys.argv[1]) / 'horovod.whl').touch(); print('done', file=sys.stderr)"
    )
    wheel, log = build(script, tmp_path, out)
    assert wheel == out / "horovod.whl"
    text = log.read_text()
    assert text.startswith(f"$ {sys.executable}")
    assert "[1/2] Building a.cc.o" in text
    assert "done" in text


def test_a_failure_is_explained_and_the_log_named(tmp_path, out):
    script = "print('fatal error: Python.h: No such file or directory'); raise SystemExit(1)"
    with pytest.raises(BuildError, match="header files of this Python are missing") as raised:
        build(script, tmp_path, out)
    assert raised.value.code == "PD202"
    assert str(tmp_path / "build.log") in raised.value.hint


def test_success_without_a_wheel_is_a_failure(tmp_path, out):
    with pytest.raises(BuildError) as raised:
        build("print('nothing to do')", tmp_path, out)
    assert raised.value.value == "nothing to do"


def test_output_that_is_no_text_does_not_matter(tmp_path, out):
    script = "import sys; sys.stdout.buffer.write(bytes(range(256))); raise SystemExit(3)"
    with pytest.raises(BuildError):
        build(script, tmp_path, out)


def test_verbose_shows_the_output_too(tmp_path, out, capfdbinary):
    with pytest.raises(BuildError):
        build("print('seen'); raise SystemExit(1)", tmp_path, out, verbose=True)
    assert b"seen\n" in capfdbinary.readouterr().err


def test_what_the_build_leaves_running_is_ended(tmp_path, out):
    script = (
        "import subprocess, sys, pathlib; "
        "child = subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL, "
        "stderr=subprocess.DEVNULL); print('child', child.pid, flush=True); raise SystemExit(1)"
    )
    with pytest.raises(BuildError) as raised:
        build(script, tmp_path, out)
    pid = int(raised.value.value.split()[1])
    assert gone(pid)


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - as short as it gets
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_of_a_huge_log_both_ends_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "_LOG_READ", 10)
    log = tmp_path / "log"
    log.write_text("beginning" + "x" * 100 + "the end!!!")
    assert compilation._ends(log) == "beginningxthe end!!!"
    log.write_text("short")
    assert compilation._ends(log) == "short"
