from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.horovod_build.facts import Compiler, Framework
from popdist.horovod_build.plan import library_path, make_plan
from tests.popdist.horovod_build.samples import GB, facts, gpu_facts, mpi, options, python

PLAN = make_plan(facts(), options())


def key(**changes):
    return make_plan(facts(**changes), options()).key


@pytest.mark.parametrize(
    "changes",
    [
        {"python": python(version="3.10.13")},
        {"torch": Framework("torch", "2.12.0+cpu")},
        {"torch": None},
        {"tensorflow": Framework("tensorflow-cpu", "2.21.0")},
        {"tensorflow": None},
        {"mpi": mpi(version="5.0.11")},
        {"mpi": mpi(prefix="/opt/openmpi")},
        {"machine": replace(facts().machine, libc="musl 1.2")},
        {"machine": replace(facts().machine, architecture="aarch64")},
        {"machine": replace(facts().machine, cpu_flags=())},
        {"user_flags": (("CXXFLAGS", "-O1"),)},
    ],
    ids=str,
)
def test_the_key_follows_every_version_that_matters(changes):
    assert key(**changes) != PLAN.key


def test_the_key_follows_nccl():
    with_nccl = make_plan(gpu_facts(), options(nccl=True))
    assert with_nccl.key != make_plan(gpu_facts(), options()).key
    assert dict(with_nccl.components)["nccl"] == "NCCL 2.29.7, CUDA 13.0"


@given(
    st.integers(1, 64),
    st.integers(0, 100 * GB),
    st.sampled_from(["/env", "/home/somebody/project/.venv", "/tmp/x"]),
    st.sampled_from([None, 1, 7]),
    st.sampled_from([None, Compiler("/usr/bin/c++", None, "gcc", "13.1.0")]),
)
def test_the_key_ignores_what_does_not_change_the_wheel(cpus, memory, prefix, jobs, compiler):
    whole = facts(prefix, compiler=compiler)
    whole = replace(
        whole,
        machine=replace(whole.machine, cpus=cpus, available_memory=memory, free_disk=GB),
        cmake_version="4.4.4",
    )
    assert make_plan(whole, options(jobs=jobs)).key == PLAN.key


def test_a_cache_that_machines_share_holds_a_wheel_for_each_c_library():
    older = make_plan(facts(machine=replace(facts().machine, libc="glibc 2.31")), options())
    assert older.key == PLAN.key
    assert {older.place, PLAN.place} == {f"{PLAN.key}-glibc-2.31", f"{PLAN.key}-glibc-2.36"}


def test_the_wheel_names_its_key():
    assert PLAN.version == f"0.28.1+popdist.{PLAN.key}"
    assert dict(PLAN.variables)["HOROVOD_LOCAL_VERSION"] == f"popdist.{PLAN.key}"


def test_mpi_in_the_environment_is_found_from_where_the_library_lies():
    assert library_path(python(), mpi(), nccl=None).split(";")[0] == "$ORIGIN/../../../.."
    assert library_path(python("/other"), mpi("/other"), nccl=None) == library_path(
        python(), mpi(), nccl=None
    )


def test_mpi_elsewhere_is_found_by_its_folder():
    assert library_path(python(), mpi("/opt/mpi"), nccl=None).split(";")[0] == "/opt/mpi/lib"


def test_nccl_in_the_environment_is_found_from_where_the_library_lies():
    nccl = python().packages / "nvidia/nccl"
    assert "$ORIGIN/../../nvidia/nccl/lib" in library_path(python(), mpi(), nccl=nccl)


def test_the_build_gets_mpi_and_the_environment_first_in_path():
    environment = PLAN.environment({"PATH": "/usr/bin"}, Path("/source"))
    assert environment["PATH"] == "/env/bin:/usr/bin"
    system = make_plan(facts(mpi=mpi("/opt/mpi")), options())
    assert system.environment({"PATH": "/usr/bin"}, Path("/source"))["PATH"] == (
        "/opt/mpi/bin:/env/bin:/usr/bin"
    )


def test_settings_for_another_build_do_not_leak_in():
    environment = PLAN.environment(
        {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_WITHOUT_GLOO": "1",
            "CMAKE_GENERATOR": "Unix Makefiles",
            "CMAKE_PREFIX_PATH": "/opt",
            "HOME": "/home/somebody",
        },
        Path("/source"),
    )
    assert "HOROVOD_GPU_OPERATIONS" not in environment
    assert "HOROVOD_WITHOUT_GLOO" not in environment
    assert environment["CMAKE_GENERATOR"] == "Ninja"
    assert environment["CMAKE_PREFIX_PATH"] == "/opt"
    assert environment["HOME"] == "/home/somebody"


def test_a_framework_that_is_left_out_is_switched_off():
    plan = make_plan(facts(tensorflow=None), options())
    assert plan.frameworks == ("torch",)
    switches = dict(plan.variables)
    assert switches["HOROVOD_WITH_PYTORCH"] == "1"
    assert switches["HOROVOD_WITHOUT_TENSORFLOW"] == "1"
    assert "HOROVOD_WITH_TENSORFLOW" not in switches


def test_the_number_of_jobs_reaches_ninja_and_keeps_horovod_from_choosing_its_own():
    variables = dict(make_plan(facts(), options(jobs=3)).variables)
    assert variables["CMAKE_BUILD_PARALLEL_LEVEL"] == "3"
    assert variables["MAKEFLAGS"] == "-j3"


def test_nccl_is_linked_from_the_source_folder():
    plan = make_plan(gpu_facts(), options(nccl=True))
    environment = plan.environment({}, Path("/source"))
    assert environment["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert environment["HOROVOD_NCCL_HOME"] == "/source/nccl"
    assert environment["HOROVOD_CUDA_HOME"] == "/usr/local/cuda"
    assert environment["CUDA_HOME"] == "/usr/local/cuda"


def test_notes_say_what_the_user_might_trip_over(tmp_path):
    other = tmp_path / "mpirun"
    notes = make_plan(facts(mpirun_on_path=other), options()).notes
    assert any(str(other) in note for note in notes)
    cuda = Framework("torch", "2.13.0", cuda="13.0")
    assert any("--with-nccl" in note for note in make_plan(facts(torch=cuda), options()).notes)
    assert PLAN.notes == ()
