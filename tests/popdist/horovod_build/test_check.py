from pathlib import Path

import pytest

from popdist.errors import BuildError
from popdist.horovod_build import check, ranks
from tests.popdist.horovod_build.samples import mpi


def answer(**changes):
    right = {
        "size": 2,
        "sums": ranks.expected(2),
        "version": "2.13.0+cpu",
        "device": "cpu",
        "abilities": ["MPI", "Gloo"],
    }
    return {**right, **changes}


def failure(code=0, output="", answers=None, **choices):
    with pytest.raises(BuildError) as raised:
        check.judge("torch", code, output, answers or [answer(), answer()], **choices)
    assert raised.value.code == "PD203"
    return raised.value


def test_right_answers_pass():
    found = check.judge("torch", 0, "", [answer(), answer()])
    assert found == check.Checked("torch", "2.13.0+cpu", "cpu", ("MPI", "Gloo"))


def test_ranks_that_came_up_alone():
    error = failure(answers=[answer(size=1, sums=ranks.contribution(0)), None])
    assert "came up alone" in error.what
    assert error.value == "sizes [1]"


def test_wrong_sums():
    assert "wrong sums" in failure(answers=[answer(), answer(sums=[0.0])]).what


def test_no_end():
    assert "did not finish" in failure(code=None, output="rank 0 waits").what


def test_a_missing_ability():
    assert "without NCCL" in failure(nccl=True).what


@pytest.mark.parametrize(
    ("output", "telling"),
    [
        (
            "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory",
            "does not find the MPI",
        ),
        (
            "ImportError: Extension horovod.torch has not been built: /x/mpi_lib_v2.so not found",
            "other versions of the framework",
        ),
        ("ModuleNotFoundError: No module named 'horovod'", "not installed"),
        ("something else entirely", "could not exchange data"),
    ],
)
def test_what_the_ranks_said_is_explained(output, telling):
    error = failure(code=1, output=f"before\n{output}\nafter", answers=[None, None])
    assert telling in error.what


def test_the_sums_tell_every_rank_and_element_apart():
    assert ranks.expected(2) == [3.0, 8.0, 13.0, 18.0, 23.0]
    assert len({tuple(ranks.contribution(rank)) for rank in range(8)}) == 8


def test_the_ranks_run_under_the_chosen_mpi():
    command = check.command("torch", mpi("/opt/mpi"), Path("/folder"))
    assert command[:3] == ["/opt/mpi/bin/mpirun", "-np", "2"]
    assert command[-2:] == ["torch", "/folder"]


def test_another_launchers_variables_do_not_reach_mpirun():
    environ = {"SLURM_JOB_ID": "1", "PMIX_RANK": "0", "OMPI_MCA_btl_tcp_if_include": "lo", "A": "b"}
    cleaned = check.environment(environ)
    assert "SLURM_JOB_ID" not in cleaned
    assert "PMIX_RANK" not in cleaned
    assert cleaned["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert cleaned["A"] == "b"
    nested = check.environment({**environ, "OMPI_COMM_WORLD_SIZE": "4"})
    assert "OMPI_COMM_WORLD_SIZE" not in nested
    assert "OMPI_MCA_btl_tcp_if_include" not in nested
