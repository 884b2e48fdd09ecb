"""Jobs in allocations of a real Slurm over two hosts."""

import os
import re
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT
from tests.hosts.network import missing
from tests.hosts.slurm import PROGRAMS, Cluster

pytestmark = pytest.mark.skipif(
    bool(missing(PROGRAMS)), reason=f"SLURM IS NOT TESTED: {missing(PROGRAMS)}"
)

PYTHON = [sys.executable, "-c"]
WHERE = (
    "import os, socket, popdist as p\n"
    "t = p.topology()\n"
    "print(t.instance_index, t.num_instances, socket.gethostname(), p.getLocalInstanceIndex(), "
    "os.environ['OMP_NUM_THREADS'])"
)
NETWORK = "--mpi-global-args=--mca btl_tcp_if_include 10.77.32.0/24"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("OMP_NUM_THREADS", *[n for n in os.environ if n.startswith("SLURM_")]):
        monkeypatch.delenv(name, raising=False)


def test_a_job_fills_its_allocation(slurm, mpirun):
    code, out, errors = slurm.allocate(
        ["-N2", "--ntasks-per-node=2"], [*LAUNCHER, f"--mpirun={mpirun}", *PYTHON, WHERE]
    )
    assert (code, errors) == (0, "")
    assert sorted(out.splitlines()) == [
        "0 4 popslurm1 0 1", "1 4 popslurm1 1 1", "2 4 popslurm2 0 1", "3 4 popslurm2 1 1",
    ]  # fmt: skip


def test_horovod_sums_in_a_batch_script(slurm):
    code = (
        "import torch, horovod.torch as hvd\nhvd.init()\n"
        "print(hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).item())"
    )
    file = slurm.folder / "sum.py"
    file.write_text(code)
    words = " ".join(f"'{word}'" for word in [*LAUNCHER, NETWORK, sys.executable, str(file)])
    assert slurm.submit(["-N2", "--ntasks=2"], words) == ("COMPLETED", "3.0\n3.0\n")


def test_the_batch_file_of_the_page_runs(slurm, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "slurm.md").read_text()
    (script,) = re.findall(r"```text title.*?\n(.*?)```", page, re.DOTALL)
    activate = "source ~/training/bin/activate\n"
    assert activate in script
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(WHERE)
    ours = f"PATH={Path(sys.executable).parent}:$PATH\n"
    state, output = slurm.submit([], script.replace(activate, ours))
    assert state == "COMPLETED", output
    assert sorted(line.split()[:3] for line in output.splitlines()) == [
        ["0", "4", "popslurm1"], ["1", "4", "popslurm1"],
        ["2", "4", "popslurm2"], ["3", "4", "popslurm2"],
    ]  # fmt: skip
    assert len(list((tmp_path / "runs" / "latest").glob("instance.*.out"))) == 4


def test_a_job_on_one_host_stays_there(slurm):
    code, out, errors = slurm.allocate(
        ["-N2", "--ntasks-per-node=2"],
        ["srun", "-N1", "-n1", "-w", "popslurm2", "--overlap", *LAUNCHER, "-H", "localhost",
         "-np", "2", *PYTHON, WHERE],
    )  # fmt: skip
    assert (code, errors) == (0, "")
    assert [line.split()[2] for line in out.splitlines()] == ["popslurm2", "popslurm2"]


def test_a_failure_is_named_with_its_host(slurm):
    program = "import popdist as p\nraise SystemExit(5 * (p.getInstanceIndex() == 1))"
    code, _, errors = slurm.allocate(["-N2", "-n2"], [*LAUNCHER, *PYTHON, program])
    assert code == 5
    assert "instance 1 on popslurm2" in errors


RUN = """
import socket, sys, time
import popdist

offset = 100

def add(values):  # a closure of a script, with an exchange between the hosts
    import horovod.torch as hvd
    import torch
    popdist.init()
    index = popdist.getInstanceIndex()
    if values is None:
        if index == 1:
            raise KeyError(socket.gethostname())
        time.sleep(60)
    total = hvd.allreduce(torch.tensor(values[index] + offset), op=hvd.Sum).item()
    print("instance", index)
    return socket.gethostname(), total

options = dict(num_replicas=4, mpi_global_args=sys.argv[1])
print(popdist.run(add, args=([1, 2],), **options))
try:
    popdist.run(add, args=(None,), **options)
except RuntimeError as error:
    print("raised", error.instance, error.__cause__.args)
"""


def test_a_function_runs_on_every_task_of_an_allocation(slurm):
    file = slurm.folder / "run.py"
    file.write_text(RUN)
    network = NETWORK.partition("=")[2]
    code, out, errors = slurm.allocate(["-N2", "--ntasks=2"], [sys.executable, file, network])
    assert code == 0, errors
    *said, answers, raised = out.splitlines()
    assert sorted(said) == ["instance 0", "instance 1"]
    assert answers == "[('popslurm1', 203), ('popslurm2', 203)]"
    assert raised == "raised 1 ('popslurm2',)"


@pytest.mark.parametrize(
    ("options", "command", "text"),
    [
        (["-n2"], [*LAUNCHER, "-np", "3", "true"], "3 instances, room for 2 by its tasks"),
        (["-N1"], [*LAUNCHER, "-H", "elsewhere", "true"], "a host is not in the allocation"),
        (["-n2"], ["srun", *LAUNCHER, "true"], "srun starts poprun 2 times"),
    ],
    ids=["too many instances", "a host outside", "several launchers"],
)
def test_contradictions_are_refused(slurm, options, command, text):
    code, out, errors = slurm.allocate(options, command)
    assert (code, out) == (2, "")
    assert "[PD121]" in errors
    assert text in errors


def test_idle_tasks_are_mentioned(slurm):
    code, out, errors = slurm.allocate(["-n2"], [*LAUNCHER, "-np", "1", "echo", "hello"])
    assert (code, out) == (0, "hello\n"), errors
    assert errors.startswith("poprun: note: 1 of the 2 tasks")


def test_a_cancelled_job_leaves_nothing(slurm):
    mark = f"mark-{uuid.uuid4().hex}"
    words = " ".join(LAUNCHER)
    script = f"exec {words} {sys.executable} -c 'import time; print(1); time.sleep(300)' {mark}"
    state, _ = slurm.submit(["-N2", "-n2"], script, cancel_when="1\n1\n")
    assert state == "CANCELLED"
    until = time.monotonic() + 10
    while running(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert running(mark) == []


def running(mark):
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in process.read_bytes():
                found.append(process.parent.name)
    return found
