import pytest

from popdist.horovod_build import facts

OPEN_MPI_4 = "mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/\n"
HYDRA = """HYDRA build details:
    Version:                                 4.2.1
    Release Date:                            Wed Apr 17 15:30:02 CDT 2024
"""
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)\n"
MPICH_SHOW = "c++ -I/env/include -L/env/lib -Wl,-rpath,/env/lib -lmpicxx -lmpi\n"
OPEN_MPI_SHOW = "c++ -I/env/include -pthread -L/env/lib -lmpi\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_MPI_4, ("Open MPI", "4.1.8")),
        (OPEN_MPI_5, ("Open MPI", "5.0.11")),
        (HYDRA, ("MPICH", "4.2.1")),
        (INTEL, ("Intel MPI", "2021.9")),
        ("something else\n", ("unknown", "unknown")),
    ],
)
def test_launchers_are_told_apart(text, expected):
    assert facts.launcher_version(text) == expected


@pytest.mark.parametrize(
    ("showme", "show", "expected"),
    [
        ("mpicxx: Open MPI 4.1.8 (Language: C++)\n", OPEN_MPI_SHOW, ("Open MPI", "4.1.8")),
        ("", MPICH_SHOW, ("MPICH", "unknown")),
        ("", "icpx -I/opt/intel/mpi/include\n", ("Intel MPI", "unknown")),
        ("", "", ("unknown", "unknown")),
    ],
)
def test_wrappers_are_told_apart(showme, show, expected):
    assert facts.wrapper_version(showme, show) == expected


def program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


@pytest.fixture
def installation(tmp_path):
    program(
        tmp_path / "bin/mpicxx",
        'case "$1" in --showme:version) echo "mpicxx: Open MPI 5.0.1 (Language: C++)";;'
        f' --showme:libdirs) echo "{tmp_path}/lib64 /usr/lib";; *) echo "c++ -lmpi";; esac\n',
    )
    program(tmp_path / "bin/mpirun", 'echo "mpirun (Open MPI) 5.0.1"\n')
    return tmp_path


def test_a_chosen_prefix_is_asked(installation):
    found = facts.find(installation, {"PATH": "/usr/bin:/bin"})
    assert (found.implementation, found.version) == ("Open MPI", "5.0.1")
    assert found.launcher_version == "5.0.1"
    assert found.library == installation / "lib64"


def test_a_chosen_prefix_without_programs_still_gives_a_record(tmp_path):
    found = facts.find(tmp_path, {})
    assert found.mpicxx is None
    assert found.mpirun is None


def test_without_a_wheel_the_path_is_searched(installation, monkeypatch):
    monkeypatch.setattr(facts, "_wheel_binaries", lambda: None)
    found = facts.find(None, {"PATH": f"{installation}/bin:/usr/bin:/bin"})
    assert found.origin == "PATH"
    assert found.mpirun == installation / "bin/mpirun"
    assert facts.find(None, {"PATH": str(installation)}) is None
