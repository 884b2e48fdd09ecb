"""Plain loops as programs: each runs in plain torch, and on real ranks with other rows on each."""

import logging
import warnings
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

import popdist_torch.horovod as hvd
from popdist.errors import PopdistError
from tests.popdist_torch.reference import flat

RANKS, STEPS, ROWS = 2, 4, 4


class World:
    """One process of plain torch with all rows; or one of two ranks with its own."""

    def __init__(self, ranks):
        self.ranks, self.rank = ranks, hvd.rank() if ranks > 1 else 0
        self.labels = torch.Generator().manual_seed(5)

    def optimizer(self, optimizer, model, **kwargs):
        if self.ranks == 1:
            return optimizer
        return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **kwargs)

    def rows(self, step, count=ROWS, width=5, dtype=torch.float64):
        generator = torch.Generator().manual_seed(100 + step)
        x = torch.randn(RANKS * count, width, generator=generator, dtype=torch.float64).to(dtype)
        y = torch.randint(0, 3, (RANKS * count,), generator=generator)
        mine = slice(self.rank * count, (self.rank + 1) * count) if self.ranks > 1 else slice(None)
        return x[mine], y[mine]


class Net(nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(5, 7, dtype=dtype), nn.Linear(7, 3, dtype=dtype)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).double(), batch[1])


def sgd(model, **kwargs):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, **kwargs)


def step_once(model, optimizer, batch):
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


class Programs(dict):
    """Programs by name; used as a decorator, it adds one."""

    def __call__(self, function):
        self[function.__name__] = function
        return function

    def run(self):
        """Runs all of them on a rank; returns the weights of each."""
        hvd.init()
        world = World(RANKS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # torch 2.11's compiler imports what torch itself deprecates from Python 3.12 on.
            warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)
            return {name: flat(function(world)) for name, function in self.items()}

    def compare(self, answers, name, tolerance=1e-12):
        """Compares the weights of all ranks with those of one process on the global batch."""
        for answer in answers:
            np.testing.assert_array_equal(answer[name], answers[0][name])
        expected = flat(self[name](World(1)))
        np.testing.assert_allclose(answers[0][name], expected, rtol=0, atol=tolerance)


@contextmanager
def warnings_of_popdist():
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("popdist.torch").addHandler(handler)
    yield said
    logging.getLogger("popdist.torch").removeHandler(handler)


def error_of(function, world):
    try:
        function(world)
    except PopdistError as error:
        return str(error)
    return "no error"
