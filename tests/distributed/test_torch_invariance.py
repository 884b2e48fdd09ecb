"""With placement invariance, layouts give the same weights bit for bit, in every precision."""

import numpy as np
import pytest
import torch
from torch import nn

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from tests.distributed.jobs import run_job
from tests.popdist_torch import reference

LAYOUTS = {"1x4": 1, "2x2": 2, "4x1": 4, "3 uneven": 3}
REPLICAS, MICRO_BATCH, CALLS = 4, 3, 3


class Net(nn.Module):
    """Dropout, BatchNorm, an embedding, and a parameter that nobody uses."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 5)
        self.layers = nn.Sequential(
            nn.Linear(5, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Dropout(0.3), nn.Linear(33, 4)
        )
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layers(self.words(x)), y)


class Rows(Net):
    """Takes 60 bytes of input as they are: products may round by where their operands begin."""

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layers(x), y) + 0 * self.words.weight.sum()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.05)


CASES = {
    "rows": (torch.float32, "Mean", adamw),
    "float32": (torch.float32, "Mean", adamw),
    "sum": (torch.float32, "Sum", lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    "float64": (torch.float64, "Mean", lambda p: torch.optim.SGD(p, lr=0.1)),
    "bfloat16": (torch.bfloat16, "Mean", lambda p: torch.optim.SGD(p, lr=0.1)),
    "clipped": (torch.float32, "Mean", lambda p: poptorch.optim.Adam(p, 0.05, max_grad_norm=0.1)),
}


def train(invariant=True):
    answer = {}
    here = popdist.topology()
    mine = slice(here.replica_index_offset, here.replica_index_offset + here.num_local_replicas)
    shape = (CALLS, 2, 2, REPLICAS, MICRO_BATCH)
    generator = torch.Generator().manual_seed(3)
    words, y = (torch.randint(0, high, shape, generator=generator) for high in (9, 4))
    rows = torch.randn(*shape, 5, generator=generator)
    for name, (dtype, reduction, make_optimizer) in CASES.items():
        options = popdist.poptorch.Options().randomSeed(5).deviceIterations(2)
        options.Training.gradientAccumulation(2)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType[reduction])
        x, model = (rows, Rows()) if name == "rows" else (words, Net().to(dtype))
        training = poptorch.trainingModel(
            model, options, make_optimizer(model.parameters()), placement_invariant=invariant
        )
        for call in range(CALLS):
            training(x[call, :, :, mine].flatten(0, 3), y[call, :, :, mine].flatten(0, 3))
        answer[name] = reference.flat(model)
        answer[f"{name} moved"] = bool((model.idle == 1).all())
    return answer


@pytest.fixture(scope="module")
def jobs():
    return {
        layout: run_job(train, instances=instances, replicas=REPLICAS)
        for layout, instances in LAYOUTS.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_layouts_give_the_same_weights_bit_for_bit(jobs, name):
    expected = jobs["1x4"][0][name]
    for answers in jobs.values():
        for answer in answers:
            np.testing.assert_array_equal(answer[name], expected)
            assert answer[f"{name} moved"]


def test_the_weights_are_those_of_the_ordinary_exchange_but_for_rounding(jobs):
    ordinary = run_job(train, instances=1, replicas=REPLICAS, invariant=False)[0]
    difference = np.abs(ordinary["float64"] - jobs["4x1"][0]["float64"]).max()
    assert difference < 1e-12
    # Were no rounding visible, the test above would show nothing.
    assert (ordinary["float32"] != jobs["4x1"][0]["float32"]).any()


def stop(instance):
    """One replica of one instance meets a number that is none, in its second call."""
    options = popdist.poptorch.Options().randomSeed(5)
    options.Training.gradientAccumulation(2)
    model = nn.Linear(1, 1)
    wrapped = Loss(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(wrapped, options, optimizer, stop_at_bad_loss=True)
    rows = torch.ones(4, 1)
    training(rows)
    before = reference.flat(model)
    if popdist.getInstanceIndex() == instance:
        rows[3] = float("nan")  # step 1 of this instance's second replica
    try:
        training(rows)
    except poptorch.Error as error:
        return {"seen": str(error), "same": bool((reference.flat(model) == before).all())}
    return {"seen": "trained", "same": False}


class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return poptorch.identity_loss(self.model(x).square(), reduction="mean")


def test_a_loss_that_is_no_number_stops_all_instances_and_is_found():
    for answer in run_job(stop, instances=2, replicas=4, instance=1):
        assert "[PD309]" in answer["seen"]
        assert "replica 3, accumulation step 1" in answer["seen"]
        assert "update 2" in answer["seen"]
        assert answer["same"]
