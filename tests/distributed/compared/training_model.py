"""A model of `trainingModel` with accumulation, and the loss that the command line names."""

import sys

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

import popdist.poptorch
import popdist_torch as poptorch

LOSSES = {
    "mean": F.cross_entropy,
    "topk": lambda s, y: poptorch.identity_loss(
        F.cross_entropy(s, y, reduction="none").topk(2).values.mean(), "none"
    ),
}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4)
        )

    def forward(self, x, y):
        return LOSSES[sys.argv[1]](self.layers(x), y)


options = popdist.poptorch.Options()
options.randomSeed(3)
options.Training.gradientAccumulation(2)
if "sum" in sys.argv:
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
draw = torch.Generator().manual_seed(0)
x, y = torch.randn(96, 6, generator=draw), torch.randint(0, 4, (96,), generator=draw)
model = Model()
training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), 0.05))
data = torch.utils.data.TensorDataset(x, y)
for batch in poptorch.DataLoader(options, data, batch_size=4, shuffle=True):
    training(*batch)
