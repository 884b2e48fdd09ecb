"""Host communication among real instances, over each Horovod binding."""

import time

import pytest

from tests.distributed.jobs import run_job


def meet(binding, folder):
    """Instance 0 is late; nobody may pass the barrier before it has come."""
    import importlib
    from pathlib import Path

    import popdist

    importlib.import_module(binding)
    popdist.init()
    popdist.init()
    flag = Path(folder) / "instance 0 was here"
    if popdist.getInstanceIndex() == 0:
        time.sleep(0.5)
        flag.touch()
    popdist.synchronize()
    seen = flag.exists()
    from popdist import backend

    used = backend.current().horovod.__name__
    return {"seen": seen, "used": used, "initialised": popdist.isBackendInitialized()}


@pytest.mark.parametrize("binding", ["torch", "tensorflow"])
def test_synchronize_waits_for_every_instance(binding, tmp_path):
    answers = run_job(meet, binding=binding, folder=str(tmp_path))
    assert [answer["seen"] for answer in answers] == [True, True]
    assert {answer["used"] for answer in answers} == {f"horovod.{binding}"}
    assert all(answer["initialised"] for answer in answers)


def take_turns(folder):
    """Subsets run, return and meet on their own while the others go on."""
    from pathlib import Path

    import popdist

    popdist.init()
    index = popdist.getInstanceIndex()
    both = popdist.execute_on_instances({0, 2}, within, folder, index)
    alone = popdist.execute_on_instances({1}, lambda: within(folder, index, alone=True))
    popdist.synchronize()
    again = popdist.execute_on_instances({0, 2}, lambda: index)
    return {
        "both": both,
        "alone": alone,
        "again": again,
        "files": len(list(Path(folder).iterdir())),
    }


def within(folder, index, *, alone=False):
    """Inside a group a barrier is the group's."""
    from pathlib import Path

    import popdist

    (Path(folder) / str(index)).touch()
    popdist.synchronize()
    expected = {"1"} if alone else {"0", "2"}
    return expected <= {path.name for path in Path(folder).iterdir()}


def test_execute_on_instances_with_groups_of_three(tmp_path):
    answers = run_job(take_turns, instances=3, folder=str(tmp_path))
    assert [answer["both"] for answer in answers] == [True, None, True]
    assert [answer["alone"] for answer in answers] == [None, True, None]
    assert [answer["again"] for answer in answers] == [0, None, 2]
    assert [answer["files"] for answer in answers] == [3, 3, 3]


def share_horovod():
    """The program's own Horovod, before and after ours, keeps working."""
    import horovod.torch as hvd
    import torch

    import popdist

    hvd.init()
    popdist.init()
    first = hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).item()
    popdist.finalizeBackend()
    second = hvd.allreduce(torch.tensor([2.0]), op=hvd.Sum).item()
    popdist.init()
    popdist.synchronize()
    same = (hvd.rank(), hvd.size()) == (popdist.getInstanceIndex(), popdist.getNumInstances())
    return {"first": first, "second": second, "same": same}


def test_horovod_is_shared_with_the_program():
    assert run_job(share_horovod) == [{"first": 3.0, "second": 4.0, "same": True}] * 2


def pretend_more_instances():
    """The variables promise four instances where mpirun has started two."""
    import os

    index = int(os.environ["POPDIST_INSTANCE_INDEX"])
    os.environ["POPDIST_NUM_TOTAL_REPLICAS"] = "4"
    os.environ["POPDIST_NUM_INSTANCES"] = "4"
    import popdist

    try:
        popdist.init()
    except popdist.PopdistError as error:
        return {"code": error.code, "text": str(error), "index": index}
    return {"code": "none"}


def test_another_job_than_the_launchers_is_refused():
    answers = run_job(pretend_more_instances)
    assert [answer["code"] for answer in answers] == ["PD011", "PD011"]
    assert "size 2, rank 1; launcher: 4 instances, index 1" in answers[1]["text"]
