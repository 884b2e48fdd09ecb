"""Libraries for programs that load their compiled operators."""

import ctypes
import subprocess

import pytest

from popdist.errors import UsageError
from popdist.sdk.cli import main
from popdist.sdk.loadable import library, write


def test_a_program_can_load_the_file(tmp_path, capsys):
    path = tmp_path / "build" / "custom_ops.so"
    assert main(["custom-ops", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert ctypes.CDLL(str(path))._handle
    with pytest.raises(AttributeError):
        ctypes.CDLL(str(path)).an_operator  # noqa: B018 - there are no symbols


def test_the_tools_of_the_system_read_it(tmp_path):
    (path,) = write([str(tmp_path / "ops.so")])
    said = subprocess.run(["readelf", "-hld", path], capture_output=True, text=True, check=False)
    assert "DYN (Shared object file)" in said.stdout
    assert "Warning" not in said.stderr


def test_it_is_written_again_but_nothing_else_is_replaced(tmp_path, capsys):
    path = tmp_path / "ops.so"
    write([str(path), str(path)])
    mine = tmp_path / "mine.so"
    mine.write_bytes(b"\x7fELF of somebody else")
    with pytest.raises(UsageError, match="PD366"):
        write([str(mine)])
    assert main(["custom-ops", str(mine)]) == 2
    assert "mine.so" in capsys.readouterr().err
    assert mine.read_bytes() == b"\x7fELF of somebody else"


def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="PD366"):
        write([str(tmp_path / "file" / "ops.so")])


def test_other_machines_have_their_number():
    assert library(183)[18:20] == (183).to_bytes(2, "little")
