"""Host communication among real instances, over each Horovod binding."""

import json
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, run_command, run_job
from tests.distributed.warm import python


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
    answers = run_job(meet, framework=binding, binding=binding, folder=str(tmp_path))
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
    answers = run_job(take_turns, framework="torch", instances=3, folder=str(tmp_path))
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
    assert (
        run_job(share_horovod, framework="torch")
        == [{"first": 3.0, "second": 4.0, "same": True}] * 2
    )


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
    answers = run_job(pretend_more_instances, framework="torch")
    assert [answer["code"] for answer in answers] == ["PD011", "PD011"]
    assert "size 2, rank 1; launcher: 4 instances, index 1" in answers[1]["text"]


BIN = Path(sys.executable).parent
LAUNCHERS = {
    "poprun": [*LAUNCHER, "--num-instances=2"],
    "mpirun": [BIN / "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"],
    "horovodrun over gloo": [BIN / "horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
}


def torch_places():
    """What the adapters over PyTorch's binding say, before the program has started Horovod too."""
    import popdist_torch.horovod
    from popdist import backend
    from popdist_onnx.training.local_replicas import current_job

    options = popdist_torch.Options().Distributed
    yield "options", [options.processId, options.numProcesses]
    job = current_job()
    yield "onnx", [job.first_replica, job.total_replicas]
    horovod = backend.connect("torch")
    yield "connected", [horovod.rank(), horovod.size()]
    popdist_torch.horovod.init()
    yield "loop", [popdist_torch.horovod.rank(), popdist_torch.horovod.size()]


def keras_places():
    """What the TensorFlow adapter says, after the program has started Horovod."""
    import popdist_tf.keras
    from popdist import backend
    from popdist.errors import BackendError

    if backend.launch().by != "poprun":  # the program has to say that the processes belong together
        with pytest.raises(ValueError, match="started 2 processes that know nothing of each other"):
            popdist_tf.keras.rank()
    popdist_tf.keras.init()
    yield "keras", [popdist_tf.keras.rank(), popdist_tf.keras.size()]
    # A second binding would end the process.
    with pytest.raises(BackendError, match="PD013"):
        backend.connect("torch")


FRAMEWORKS = {"torch_places": "torch", "keras_places": "tensorflow"}


def answer(adapter, folder):
    from popdist import backend

    here = backend.launch()
    found = {"launcher": [here.rank, here.size], **dict(globals()[adapter]())}
    (Path(folder) / f"{here.rank}.json").write_text(json.dumps(found))


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_every_adapter_finds_the_same_place_whoever_started_the_job(adapter, launcher, tmp_path):
    program = (
        f"from tests.distributed.test_backend import answer; answer({adapter!r}, {str(tmp_path)!r})"
    )
    command = [*LAUNCHERS[launcher], *python(FRAMEWORKS[adapter]), "-c", program]
    code, output = run_command(command, env={"PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin"})
    assert code == 0, output
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == {name: [rank, 2] for name in found}
