"""Real jobs whose instances differ: an error that says where, on all of them, and never a hang."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from popdist.errors import BackendError
from tests.distributed.jobs import run_job


class Net(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.first = nn.Linear(3, hidden)
        self.last = nn.Linear(hidden, 2)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.last(self.first(x)), y)


X, Y = torch.ones(2, 3), torch.ones(2, 2)


def differing(index):
    """Options, model and optimizer of an instance, one way of differing at a time."""

    def make(*, seed=1, hidden=4, accumulation=1, lr=0.1):
        options = popdist.poptorch.Options().randomSeed(seed)
        options.Training.gradientAccumulation(accumulation)
        model = Net(hidden)
        return options, model, torch.optim.SGD(model.parameters(), lr=lr)

    yield "weights", *make(seed=1 + index)
    yield "shapes", *make(hidden=4 + index)
    yield "options", *make(accumulation=1 + index)
    yield "learning rate", *make(lr=0.1 * (1 + index))
    options, model, optimizer = make()
    poptorch.DataLoader(options, TensorDataset(torch.zeros(100 + 10 * index)), batch_size=2)
    yield "data", options, model, optimizer
    options, model, optimizer = make()
    own_part = TensorDataset(torch.zeros(4 + 2 * index))
    poptorch.DataLoader(options, own_part, batch_size=2, auto_distributed_partitioning=False)
    yield "own parts", options, model, optimizer
    options, model, optimizer = make()
    if index == 0:  # what only one instance loads, for validation say, is its own business
        poptorch.DataLoader(options, TensorDataset(torch.zeros(50)), batch_size=2)
    yield "nothing", options, model, optimizer


def attempts():
    popdist.init()
    seen = {}
    for name, options, model, optimizer in differing(popdist.getInstanceIndex()):
        training = poptorch.trainingModel(model, options, optimizer)
        try:
            training(X, Y)
        except poptorch.Error as error:
            seen[name] = str(error)
        else:
            seen[name] = "trained"
        training.destroy()
    # The check can be left out by programs that share weights later.
    options, model, optimizer = next(differing(popdist.getInstanceIndex()))[1:]
    poptorch.trainingModel(model, options, optimizer, check_agreement=False)(X, Y)
    return seen


def test_every_difference_is_named_on_every_instance():
    first, second = run_job(attempts)
    assert first == second
    assert first.pop("nothing") == "trained"
    assert all("[PD007]" in text for text in first.values())
    assert "values of first.weight" in first["weights"]
    assert "randomSeed" in first["weights"]
    assert "parameter first.weight: torch.float32 [4, 3] on instance 0" in first["shapes"]
    assert "[5, 3] on instance 1" in first["shapes"]
    assert "option gradientAccumulation: 1 on instance 0; 2 on instance 1" in first["options"]
    assert "optimizer group 0: lr: 0.1 on instance 0; 0.2 on instance 1" in first["learning rate"]
    assert "data set 0: 100 samples" in first["data"]
    assert "110 samples" in first["data"]
    assert "2 batches a process on instance 0; 3 batches" in first["own parts"]


def leave_early():
    options = popdist.poptorch.Options().randomSeed(1)
    model = Net()
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        for _ in range(1 if popdist.getInstanceIndex() == 1 else 3):
            training(X, Y)
    except BackendError as error:
        return {"seen": str(error)}
    return {"seen": "trained"}


def test_an_instance_that_stops_early_is_noticed_by_the_others():
    first, second = run_job(leave_early)
    assert second == {"seen": "trained"}
    assert "[PD021]" in first["seen"]
    assert "fewer steps" in first["seen"]


def describe_another_job():
    options = poptorch.Options()
    options.Distributed.configureProcessId(0, 4)
    popdist.init()
    model = Net()
    try:
        poptorch.trainingModel(model, options)(X, Y)
    except poptorch.Error as error:
        return {"seen": str(error)}
    return {"seen": "trained"}


def test_options_of_another_job_are_noticed():
    for answer in run_job(describe_another_job):
        assert "process 0 of 4 in options.Distributed" in answer["seen"]


def train_and_infer_alone():
    """Instance 0 runs a model of its own while the other trains nothing."""
    popdist.init()

    def alone():
        options = poptorch.Options()
        options.Distributed.disable()
        torch.manual_seed(1)
        model = Net()
        loss = poptorch.trainingModel(model, options)(X, Y)
        return poptorch.inferenceModel(model, options)(X, Y).item() < loss.item()

    return {"improved": popdist.execute_on_instances({0}, alone)}


def test_one_instance_can_train_alone():
    assert [answer["improved"] for answer in run_job(train_and_infer_alone)] == [True, None]
