import os
import time
from pathlib import Path

import pytest

from benchmarks.programs import find_mpirun
from benchmarks.ranks import run_on_ranks
from benchmarks.sampling import MeasurementError

pytestmark = pytest.mark.skipif(find_mpirun() is None, reason="needs an mpirun")

# The ranks import this module by its name, so its folder has to be theirs too.
HERE = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])}


def on_ranks(function, **arguments):
    return run_on_ranks(f"{Path(__file__).stem}:{function.__name__}", env=HERE, **arguments)


def identify(word):
    return {"rank": os.environ["OMPI_COMM_WORLD_RANK"], "word": word}


def fail_on_rank_1():
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        raise RuntimeError("a reason of its own")


def hang(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("launcher", ["mpirun", "poprun"])
def test_answers_come_in_the_order_of_the_ranks(launcher):
    word = 'it\'s; $(two) "words" é'
    answers = on_ranks(identify, ranks=3, launcher=launcher, word=word)
    assert answers == [{"rank": str(rank), "word": word} for rank in range(3)]


def test_a_rank_that_fails_fails_the_job_with_its_reason():
    with pytest.raises(MeasurementError, match="a reason of its own"):
        on_ranks(fail_on_rank_1)


@pytest.mark.parametrize("launcher", ["mpirun", "poprun"])
def test_a_job_that_hangs_is_ended_and_leaves_no_process(tmp_path, launcher):
    with pytest.raises(MeasurementError, match="no end in 4"):
        on_ranks(hang, launcher=launcher, timeout=4.0, folder=str(tmp_path))
    pids = [path.name for path in tmp_path.iterdir()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while not all(gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(gone(pid) for pid in pids)
