"""Jobs over several machines that have no ssh server: the same command on each of them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.jobs import LAUNCHER
from tests.hosts.network import Hosts, Setup, missing

PROGRAMS = ("ip", "ssh-keygen", "unshare", "nsenter")
pytestmark = pytest.mark.skipif(
    bool(missing(PROGRAMS)), reason=f"NODES ARE NOT TESTED: {missing(PROGRAMS)}"
)

TRAIN = """
import sys, numpy as np, torch, popdist, popdist_torch.horovod as hvd
hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
for step in range(6):
    rows = torch.Generator().manual_seed(100 * step + hvd.rank())
    x, y = torch.rand(4, 5, generator=rows), torch.rand(4, 3, generator=rows)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
np.save(f"{sys.argv[1]}/{hvd.rank()}.npy", flat.numpy())
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    setups = {index: Setup(runs=False) for index in range(2)}
    folder = tmp_path_factory.mktemp("nodes")
    with Hosts(folder, name="popnode", subnet=37, setups=setups) as hosts:
        yield hosts


class Nodes:
    """The same command on every host, with a key of its own for each test."""

    def __init__(self, hosts, mpirun, folder):
        self._hosts = hosts
        network = f"{hosts.network}.0/24"
        self._options = [
            f"--mpirun={mpirun}", f"--host-subnet={network}", "--nnodes=2",
            f"--master-addr={hosts.addresses[0]}",
        ]  # fmt: skip
        self._environ = os.environ | {"XDG_CONFIG_HOME": str(folder), "TMPDIR": str(folder)}
        # As on machines that never had an ssh client.
        self._environ["PATH"] = str(Path(mpirun).parent)

    def start(self, rank, *words, **environ):
        inside = ["nsenter", f"--net=/run/netns/{self._hosts.names[rank]}", "unshare", "--uts"]
        named = f'hostname {self._hosts.names[rank]} && exec "$@"'
        command = [*LAUNCHER, *self._options, f"--node-rank={rank}", *words]
        return subprocess.Popen(
            [*inside, "sh", "-c", f"PATH=/usr/sbin:/usr/bin:/bin; {named}", "sh",
             "env", f"PATH={self._environ['PATH']}", *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=self._environ | environ | {"PATH": os.environ["PATH"]},
        )  # fmt: skip


@pytest.fixture
def nodes(hosts, mpirun, tmp_path):
    return Nodes(hosts, mpirun, tmp_path)


def ended(*processes):
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def test_two_nodes_train_to_the_bits_of_one(nodes, tmp_path):
    for name in ("two", "one"):
        (tmp_path / name).mkdir()
    job = ["-np", "4", sys.executable, "-c", TRAIN]
    codes, outputs = ended(*(nodes.start(rank, *job, f"{tmp_path}/two") for rank in (1, 0)))
    assert codes == [0, 0], outputs
    done = subprocess.run([*LAUNCHER, *job, f"{tmp_path}/one"], timeout=120, check=False)
    assert done.returncode == 0
    weights = {
        name: [np.load(tmp_path / name / f"{rank}.npy") for rank in range(4)]
        for name in ("two", "one")
    }
    for rank in range(4):
        np.testing.assert_array_equal(weights["two"][rank], weights["two"][0])
    np.testing.assert_array_equal(weights["two"][0], weights["one"][0])
    assert not list(tmp_path.glob("*poprun*"))


def test_output_and_exit_code_are_those_of_the_job(nodes, tmp_path):
    code = (
        "import os, socket, sys, time\n"
        "index = int(os.environ['POPDIST_INSTANCE_INDEX'])\n"
        "print(index, socket.gethostname(), flush=True)\n"
        "if index == 0: open(sys.argv[1], 'w').close()\n"
        "until = time.monotonic() + 60  # a failure ends the other instance\n"
        "while not os.path.exists(sys.argv[1]) and time.monotonic() < until: time.sleep(0.05)\n"
        "time.sleep(0.5)\n"
        "ours = [n for n in os.environ if n.startswith('POPRUN_NODE')]\n"
        "secret = [n for n in ours if n != 'POPRUN_NODE_OF']\n"
        "assert not secret, secret\n"
        "sys.exit(7 if index == 1 else 0)"
    )
    job = ["-np", "2", sys.executable, "-c", code, f"{tmp_path}/printed"]
    key = {"POPRUN_NODE_KEY": "of-this-very-test"}
    codes, (first, second) = ended(*(nodes.start(rank, *job, **key) for rank in (0, 1)))
    assert codes == [7, 7], (first, second)
    assert "0 popnode1" in first
    assert "1 popnode2" in first
    assert "instance 1" in first
    assert "popnode" not in second


@pytest.mark.parametrize(
    ("way", "code", "expected"),
    [("key", "PD123", "has connected with another key"), ("program", "PD122", "is refused")],
)
def test_a_node_that_does_not_belong_to_the_job_is_refused(nodes, way, code, expected):
    job = ["-np", "2", "/bin/true"]
    first = nodes.start(0, *job, POPRUN_NODE_KEY="the-key-of-the-job")
    key = "another-key-of-others" if way == "key" else "the-key-of-the-job"
    stranger = nodes.start(1, "-np", "2", "/bin/false" if way == "program" else "/bin/true",
                           POPRUN_NODE_KEY=key)  # fmt: skip
    (refused,), (said,) = ended(stranger)
    assert refused == 2
    assert f"[{code}]" in said
    codes, (second, output) = ended(nodes.start(1, *job, POPRUN_NODE_KEY="the-key-of-the-job"),
                                    first)  # fmt: skip
    assert codes == [0, 0], (second, output)
    assert expected in output


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_is_left_where_a_node_is_ended(nodes, rank):
    job = ["-np", "2", "/bin/sh", "-c", "echo begun; exec /bin/sleep 4242"]
    processes = [nodes.start(0, *job), nodes.start(1, *job)]
    begun = [processes[0].stdout.readline() for _ in range(3)]
    assert begun.count("begun\n") == 2, begun
    processes[rank].send_signal(signal.SIGTERM)
    codes, outputs = ended(*processes)
    assert 0 not in codes, outputs
    assert "Traceback" not in "".join(outputs)
    left = subprocess.run(["pgrep", "-fx", "/bin/sleep 4242"], capture_output=True, check=False)
    assert left.stdout == b""
