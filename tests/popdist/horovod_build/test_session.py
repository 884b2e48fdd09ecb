"""The program as a user runs it, as far as that takes no compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from popdist.horovod_build import session
from popdist.horovod_build.cache import Cache
from popdist.horovod_build.check import Checked
from popdist.horovod_build.plan import make_plan
from tests.popdist.horovod_build.samples import facts, options

ROOT = Path(__file__).resolve().parents[3]
PLAN = make_plan(facts(), options())


def program(*arguments, python=sys.executable, **environ):
    return subprocess.run(
        [python, "-m", "popdist.horovod_build", *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """An interpreter with nothing installed, not even pip."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin/python"


def test_a_bare_environment_hears_what_is_missing(bare_python, tmp_path):
    done = program("--cache-dir", str(tmp_path), python=bare_python, PATH="/nowhere")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "[PD200] there is no framework to build Horovod for" in done.stderr
    assert "[PD204] no MPI was found" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_mistake_in_the_command_line_is_exit_code_2():
    done = program("--jobs", "none")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_mpi_that_is_not_there_is_named(tmp_path):
    done = program("--mpi", str(tmp_path / "mpi"), "--print-plan")
    assert done.returncode == 1
    assert str(tmp_path / "mpi") in done.stderr
    assert "[PD204]" in done.stderr


def test_a_cache_that_cannot_be_written_is_no_traceback(tmp_path, stage):
    (tmp_path / "file").write_text("")
    assert session.main(["--cache-dir", str(tmp_path / "file")]) == 1
    assert "[PD200] the cache" in stage.said()


def test_importing_it_imports_the_standard_library_alone():
    script = (
        "import sys; before = set(sys.modules); import popdist.horovod_build.session; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["popdist"]


class Stage:
    """Stands in for the steps that need a compiler or MPI, and notes which were taken."""

    def __init__(self, monkeypatch, capsys):
        self.installed = None
        self.steps = []
        self._capsys = capsys
        monkeypatch.setattr(session, "gather", lambda *_: facts())
        monkeypatch.setattr(session.compilation, "installed", lambda: self.installed)
        monkeypatch.setattr(session.compilation, "identity", lambda: f"here {self.installed}")
        monkeypatch.setattr(session.compilation, "install", self._install)
        monkeypatch.setattr(session.source, "fetch", lambda _: Path("archive"))
        monkeypatch.setattr(session.source, "unpack", lambda _, folder: folder / "source")
        monkeypatch.setattr(session.source, "apply", lambda *_: None)
        monkeypatch.setattr(session.compilation, "build", self._build)
        monkeypatch.setattr(session.openmpi_prefix, "write", lambda **_: None)
        monkeypatch.setattr(session.check, "check", self._check)

    def _install(self, wheel):
        self.steps.append("install")
        self.installed = f"0.28.1+popdist.{wheel.parent.name.partition('-')[0]}"

    def _build(self, _plan, _root, out, *_, **__):
        self.steps.append("build")
        (out / "horovod.whl").touch()
        return out / "horovod.whl"

    def _check(self, framework, *_, **__):
        self.steps.append(f"check {framework}")
        return Checked(framework, "1.0", "cpu", ("MPI",))

    def said(self):
        return self._capsys.readouterr().err


@pytest.fixture
def stage(monkeypatch, capsys):
    return Stage(monkeypatch, capsys)


def run(stage, tmp_path, *arguments):
    stage.steps.clear()
    assert session.main(["--cache-dir", str(tmp_path / "cache"), *arguments]) == 0
    return stage.steps


CHECKS = ["check torch", "check tensorflow"]


def test_the_first_run_builds_and_the_second_has_nothing_to_do(stage, tmp_path):
    assert run(stage, tmp_path) == ["build", "install", *CHECKS]
    assert not list((tmp_path / "cache/horovod/scratch").iterdir())
    stage.said()
    assert run(stage, tmp_path) == []
    assert "nothing to do" in stage.said()


def test_another_environment_takes_the_wheel_from_the_cache(stage, tmp_path):
    run(stage, tmp_path)
    stage.installed = None
    assert run(stage, tmp_path) == ["install", *CHECKS]


def test_a_horovod_that_was_not_built_for_this_is_replaced(stage, tmp_path):
    run(stage, tmp_path)
    stage.installed = "0.28.1"
    assert run(stage, tmp_path) == ["install", *CHECKS]


def test_check_only_checks(stage, tmp_path):
    assert run(stage, tmp_path, "--check") == CHECKS


def test_force_builds_again(stage, tmp_path):
    run(stage, tmp_path)
    assert run(stage, tmp_path, "--force") == ["build", "install", *CHECKS]


def test_an_installation_that_was_never_checked_is_checked(stage, tmp_path):
    stage.installed = PLAN.version
    assert run(stage, tmp_path) == CHECKS


def test_the_plan_is_printed_and_nothing_done(stage, tmp_path, capsys):
    assert run(stage, tmp_path, "--print-plan") == []
    assert not (tmp_path / "cache").exists()
    assert capsys.readouterr().out.startswith("Horovod 0.28.1 for torch")


def test_a_failed_build_leaves_no_scratch_and_installs_nothing(stage, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(session.compilation, "build", fail)
    assert session.main(["--cache-dir", str(tmp_path)]) == 130
    assert not list((tmp_path / "horovod/scratch").iterdir())
    assert stage.steps == []
    assert Cache(tmp_path).wheel(PLAN) is None
    assert "interrupted" in stage.said()
