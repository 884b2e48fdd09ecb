from pathlib import Path

import pytest

from popdist.horovod_build.options import Options, parse

ENVIRON = {"POPDIST_CACHE_DIR": "/cache"}


def test_nothing_asked_for():
    assert parse([], ENVIRON) == Options(cache=Path("/cache"))


def test_everything_asked_for():
    asked = parse(
        [
            *("--force", "--jobs", "3", "--cache-dir", "/c", "--mpi", "/opt/mpi"),
            *("--with-nccl", "--without-torch", "--without-tensorflow", "-v"),
        ],
        ENVIRON,
    )
    assert asked == Options(
        cache=Path("/c"),
        force=True,
        verbose=True,
        jobs=3,
        mpi=Path("/opt/mpi"),
        nccl=True,
        torch=False,
        tensorflow=False,
    )


def test_relative_folders_are_taken_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse(["--cache-dir", "x"], ENVIRON).cache == tmp_path / "x"


@pytest.mark.parametrize(
    "arguments",
    [["--jobs", "0"], ["--jobs", "many"], ["--unknown"], ["--check", "--force"], ["extra"]],
)
def test_a_mistake_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as raised:
        parse(arguments, ENVIRON)
    assert raised.value.code == 2
    assert "usage:" in capsys.readouterr().err
