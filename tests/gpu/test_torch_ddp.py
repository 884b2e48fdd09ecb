"""DistributedDataParallel over popdist's exchange, with models on a GPU that two ranks share."""

import numpy as np
import pytest
import torch

import popdist_torch.horovod as hvd
from tests.distributed.jobs import run_job
from tests.distributed.test_torch_ddp import (
    CASES,
    RANKS,
    Net,
    connected,
    halves,
    hooked,
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
    first, second = (answer[name] for answer in cases)
    np.testing.assert_array_equal(first, second)
    alone = Net("branches" if name == "branches" else "plain").double()
    expected = train(alone, lambda step: [rows(step, rank) for rank in range(RANKS)])
    np.testing.assert_allclose(first, expected, rtol=0, atol=DOUBLE)
