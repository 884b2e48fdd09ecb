"""`trainingModel` and `inferenceModel` on a GPU that two instances share, against one process.

The jobs of ``tests/distributed/test_torch_*.py`` use the GPU too, where there is one.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from tests.distributed.jobs import run_job
from tests.gpu.test_torch_plain import told
from tests.popdist_torch.reference import flat

CALLS, ITERATIONS, ACCUMULATION, REPLICAS, ROWS = 3, 2, 2, 4, 3
DOUBLE = 1e-13


class Net(nn.Module):
    """A classifier that is another one where it is not "on the IPU"."""

    def __init__(self, reentrant=None, cast=None):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.reentrant, self.cast = reentrant, cast
        self.devices = set()

    def forward(self, x, y):
        with torch.autocast(x.device.type, self.cast, enabled=self.cast is not None):
            hidden = torch.tanh(self.first(x))
            if self.reentrant is None:
                hidden = self.again(hidden)
            else:
                hidden = checkpoint(self.again, hidden, use_reentrant=self.reentrant)
            scores = self.last(hidden)
        self.devices.add(str(scores.device))
        return scores, nn.functional.cross_entropy(scores.to(self.last.weight.dtype), y)

    def again(self, hidden):
        factor = 1.0 if poptorch.isRunningOnIpu() else 3.0
        return factor * torch.tanh(self.middle(hidden))


CASES = {
    "plain": {},
    "recomputed": {"reentrant": False},
    "recomputed by nested passes": {"reentrant": True},
    "compiled": {"compiled": True},
    "fused adamw": {"fused": True},
    "on the host": {"host": True},
    "bfloat16": {"cast": torch.bfloat16},
    "float16": {"cast": torch.float16, "scaling": 1024.0},
}


def batches():
    shape = (CALLS, ITERATIONS, ACCUMULATION, REPLICAS, ROWS)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(*shape, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, shape, generator=generator)


def build(case):
    torch.manual_seed(7)
    model = Net(case.get("reentrant"), case.get("cast"))
    return model.to(torch.float32 if "cast" in case else torch.float64)


def optimizer_for(model, case):
    if "cast" in case:  # AdamW would divide coarse gradients by their size
        return poptorch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, loss_scaling=case.get("scaling", 1.0)
        )
    extra = {"fused": True} if "fused" in case else {}
    return torch.optim.AdamW(model.parameters(), lr=0.01, **extra)


def train(case):
    here = popdist.topology()
    mine = slice(here.replica_index_offset, here.replica_index_offset + here.num_local_replicas)
    options = popdist.poptorch.Options().deviceIterations(ITERATIONS).randomSeed(1)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.useIpuModel(case.get("host", False))
    if case.get("compiled"):
        options.Jit.torchCompile()
    model = build(case)
    training = poptorch.trainingModel(model, options, optimizer_for(model, case))
    x, y = batches()
    for call in range(CALLS):
        rows = x[call, :, :, mine].flatten(0, 3).to(model.last.weight.dtype)
        out, loss = training(rows, y[call, :, :, mine].flatten(0, 3))
    devices = {str(tensor.device) for tensor in (out, loss, *model.parameters())}
    training.destroy()
    return {"weights": flat(model), "ran on": sorted(model.devices), "seen on": sorted(devices)}


def expected(case):
    model = build(case).double()
    model.cast = None
    model.again = lambda hidden: torch.tanh(model.middle(hidden))
    model.reentrant = None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if "cast" in case:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (part.flatten(0, 1) for part in batches())
    for step in range(CALLS * ITERATIONS):
        optimizer.zero_grad()
        for row in range(ACCUMULATION * REPLICAS):
            _, loss = model(x[step].flatten(0, 1)[row], y[step].flatten(0, 1)[row])
            (loss / (ACCUMULATION * REPLICAS)).backward()
        optimizer.step()
    return flat(model)


def train_all():
    """Runs on every instance."""
    popdist.init()
    answer = {"id": popdist.getDeviceId(), "count": torch.cuda.device_count()}
    for name, case in CASES.items():
        with told(answer, name):
            answer |= {f"{name}/{key}": value for key, value in train(case).items()}
    return answer


@pytest.fixture(scope="module", params=[1, 2, 4])
def answers(request):
    return run_job(train_all, instances=request.param, replicas=REPLICAS, timeout=240)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process(answers, name):
    for answer in answers:
        assert answer.get(f"{name}/error") is None
        np.testing.assert_array_equal(answer[f"{name}/weights"], answers[0][f"{name}/weights"])
        place = answer[f"{name}/ran on"]
        assert all(
            device.startswith("cpu" if "host" in CASES[name] else "cuda") for device in place
        )
        assert answer[f"{name}/seen on"] == ["cpu"]
    tolerance = 5e-3 if "cast" in CASES[name] else DOUBLE
    np.testing.assert_allclose(
        answers[0][f"{name}/weights"], expected(CASES[name]), rtol=0, atol=tolerance
    )


# Checkpoints of one device that the other goes on from.


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 8, bias=False),
            nn.BatchNorm1d(8),
            nn.Tanh(),
            nn.Dropout(0.4),
            nn.Linear(8, 4),
        )

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layers(x), y)


def run(path, host, calls, load, dropping):
    popdist.init()
    options = popdist.poptorch.Options().randomSeed(3)
    options.useIpuModel(host)
    torch.manual_seed(2)
    model = Dropping().double()
    if not dropping:
        model.layers[3] = nn.Identity()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    training = poptorch.trainingModel(model, options, optimizer)
    saved = poptorch.Checkpoint(path, model=training)
    start = saved.load()["calls"] if load else 0
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 2, 4, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (6, 2, 4), generator=generator)
    mine = popdist.getInstanceIndex()
    for call in range(start, calls):
        training(x[call, mine], y[call, mine])
    saved.save(calls=calls)
    return {"weights": flat(model), "start": start}


@pytest.mark.parametrize("dropping", [False, True], ids=["without dropout", "with dropout"])
@pytest.mark.parametrize("hosts", [(False, True), (True, False), (False, False)])
def test_a_checkpoint_goes_on_on_the_other_device(tmp_path, hosts, dropping):
    def go(calls, *, host=False, load=False, name="checkpoint"):
        return run_job(
            run, path=str(tmp_path / name), host=host, calls=calls, load=load, dropping=dropping
        )

    whole = go(6, name="whole")
    go(3, host=hosts[0])
    rest = go(6, host=hosts[1], load=True)
    for answer in rest:
        assert answer["start"] == 3
        np.testing.assert_array_equal(answer["weights"], rest[0]["weights"])
    if hosts == (False, False):
        np.testing.assert_array_equal(rest[0]["weights"], whole[0]["weights"])
    elif not dropping:  # devices draw other masks
        np.testing.assert_allclose(rest[0]["weights"], whole[0]["weights"], rtol=0, atol=DOUBLE)
