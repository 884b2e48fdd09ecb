"""Each loss of the table in a `trainingModel`, on one layout of instances, replicas and steps."""

import copy
import logging
import re

import torch
from torch import nn

import popdist.poptorch
import popdist_torch
from tests.properties.torch_losses import CLASSES, LOSSES, WIDTH, Net

ROWS, UPDATES, RATE = 48, 8, 0.05


class Marked(nn.Module):
    """A network whose loss is marked as PopTorch has it."""

    def __init__(self, loss):
        super().__init__()
        self.net, self.loss = Net().double(), loss

    def forward(self, x, y):
        return popdist_torch.identity_loss(self.loss(self.net, x, y), "none")


def batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(UPDATES):
        x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        yield x, torch.randint(0, CLASSES, (ROWS,), generator=generator)


def alone(loss):
    """The weights that plain torch trains on the global batch."""
    torch.manual_seed(1)
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    with popdist_torch.local_training():
        for x, y in batches():
            optimizer.zero_grad()
            loss(net, x, y).backward()
            optimizer.step()
    return net


def outcome(loss, accumulation):
    """The codes that a job names, and its largest difference from `alone`."""
    options = popdist.poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    torch.manual_seed(1)
    model = Marked(loss)
    names, handler = [], logging.Handler()
    handler.emit = lambda record: names.extend(re.findall(r"\[(PD\d{3})\]", record.getMessage()))
    handler.setLevel(logging.INFO)
    logger = logging.getLogger("popdist.torch")
    logger.addHandler(handler)
    try:
        training = popdist_torch.trainingModel(
            model, options, torch.optim.SGD(model.parameters(), lr=RATE)
        )
        rank, size = popdist.getInstanceIndex(), popdist.getNumInstances()
        for x, y in batches():
            mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
            training(x[mine], y[mine])
        training.copyWeightsToHost()
        pairs = zip(model.net.parameters(), alone(loss).parameters(), strict=True)
        difference = max(float((one - other).detach().abs().max()) for one, other in pairs)
        training.destroy()
    finally:
        logger.removeHandler(handler)
    return {"names": sorted(set(names)), "difference": difference}


def outcomes(accumulation=1, chosen=None):
    torch.set_num_threads(1)
    wanted = {name: loss for name, (_, loss) in LOSSES.items() if chosen in (None, name)}
    return {name: outcome(copy.copy(loss), accumulation) for name, loss in wanted.items()}
