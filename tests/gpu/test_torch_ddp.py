"""DistributedDataParallel over popdist's exchange, with models on a GPU that two ranks share."""

import pytest
import torch

import popdist_torch.horovod as hvd
from tests.distributed.jobs import run_job
from tests.distributed.test_torch_ddp import (
    CASES,
    Net,
    connected,
    halves,
    hooked,
    require_one_process,
    rows,
    train,
)

DOUBLE = 1e-13


def all_cases():
    rank, device = connected(), hvd.pin_device()
    assert device.type == "cuda"

    def batch(step, name):
        x, y = (part.to(device) for part in rows(step, rank))
        return halves(x, y) if name == "accumulated" else [(x, y)]

    answers = {}
    for name, settings in CASES.items():
        model = hooked(Net(name).double().to(device), **settings)
        used = torch.compile(model, backend="eager") if name == "compiled" else model
        answers[name] = train(used, lambda step, name=name: batch(step, name))
    return answers


@pytest.fixture(scope="module")
def cases():
    return run_job(all_cases, timeout=240)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process(cases, name):
    require_one_process(cases, name, DOUBLE)
