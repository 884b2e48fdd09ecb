"""Jobs of mpirun and horovodrun: plain options and plain loops train together, without poprun."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import popdist.poptorch
import popdist_torch as poptorch
import popdist_torch.horovod as hvd
from tests.distributed.jobs import run_command
from tests.distributed.warm import python

BIN = Path(sys.executable).parent
# Root may run it, and both ranks may share a core.
LAUNCHERS = {
    "mpirun": [BIN / "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"],
    "horovodrun over gloo": [BIN / "horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
}
X, Y = torch.arange(24.0, dtype=torch.float64).view(8, 3) / 24, torch.ones(8, 2).double()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


def trained(options, micro_batch=2):
    model = Net().double()
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in poptorch.DataLoader(options, TensorDataset(X, Y), batch_size=micro_batch):
        training(x, y)
    return torch.cat([p.detach().ravel() for p in model.parameters()]).tolist()


def looped():
    """The six steps of a plain loop; ranks begin with different weights."""
    hvd.init()
    torch.manual_seed(1 + hvd.rank())
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = hvd.DistributedSampler(TensorDataset(X, Y), shuffle=False)
    size = hvd.local_batch_size(4)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # Compiled modules are the same parameters to the optimizer.
    run = torch.compile(model, backend="aot_eager")
    for x, y in torch.utils.data.DataLoader(TensorDataset(X, Y), size, sampler=sampler):
        optimizer.zero_grad()
        run(x, y).backward()
        optimizer.step()
    return torch.cat([p.detach().ravel() for p in model.parameters()]).tolist()


def attempts():
    """Every way to set the options, one after the other on each rank."""
    plain = poptorch.Options().randomSeed(1)
    yield "plain", trained(plain)
    yield "replicas", trained(poptorch.Options().randomSeed(1).replicationFactor(2), 1)
    lonely = poptorch.Options().randomSeed(1)
    lonely.Distributed.disable()
    yield "alone", trained(lonely)
    yield "loop", looped()
    other = poptorch.Options().randomSeed(1)
    other.Distributed.configureProcessId(0, 3)
    unset = poptorch.Options().randomSeed(1)
    unset.Distributed.setEnvVarNames("NO_SUCH_SIZE", "NO_SUCH_RANK")
    foreign = poptorch.Options().randomSeed(1)
    foreign.Distributed.set(num_distributed_processes=1, distributed_process_id=0)  # as of a file
    wrong = {
        "another job": other,
        "popdist": popdist.poptorch.Options().randomSeed(1),
        "variables that nobody set": unset,
        "another run's options": foreign,
    }
    for kind, options in wrong.items():
        yield kind, error_of(options)


def error_of(options):
    try:
        return trained(options)
    except poptorch.Error as error:
        return str(error)


def run_rank(folder):
    rank = poptorch.Options().Distributed.processId
    (Path(folder) / f"{rank}.json").write_text(json.dumps(dict(attempts())))


@pytest.fixture(scope="module", params=LAUNCHERS)
def answers(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    program = f"from tests.distributed.test_torch_mpirun import run_rank; run_rank({str(folder)!r})"
    path = f"{BIN}:/usr/local/bin:/usr/bin:/bin"
    command = [*LAUNCHERS[request.param], *python("torch"), "-c", program]
    code, output = run_command(command, env={"PATH": path})
    assert code == 0, output
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {kind: [rank[kind] for rank in ranks] for kind in ranks[0]} | {"output": output}


def reference(batches):
    torch.manual_seed(1)
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in batches:
        optimizer.zero_grad()
        model(X[rows], Y[rows]).backward()
        optimizer.step()
    return torch.cat([p.detach().ravel() for p in model.parameters()]).numpy()


@pytest.mark.parametrize("kind", ["plain", "replicas"])
def test_plain_options_train_together(answers, kind):
    first, second = answers[kind]
    assert first == second
    # Rank 0 reads rows 0 to 3, rank 1 the others, two at a time.
    assert abs(reference([[0, 1, 4, 5], [2, 3, 6, 7]]) - first).max() < 1e-14


def test_plain_loops_train_together(answers):
    first, second = answers["loop"]
    assert first == second
    # The sampler deals rows out in turn.
    assert abs(reference([[0, 2, 1, 3], [4, 6, 5, 7]]) - first).max() < 1e-14


def test_processes_that_are_to_be_alone_are(answers):
    expected = reference([[0, 1], [2, 3], [4, 5], [6, 7]])
    for weights in answers["alone"]:
        assert abs(expected - weights).max() < 1e-14


@pytest.mark.parametrize("kind", ["popdist", "variables that nobody set", "another run's options"])
def test_training_alone_by_mistake_is_an_error(answers, kind):
    for text in answers[kind]:
        assert "PD321" in text
        assert "2 started by" in text


def test_options_of_another_job_are_an_error(answers):
    for rank, text in enumerate(answers["another job"]):
        assert f"process 0 of 3 in options.Distributed; instance {rank} of 2 in the job" in text
