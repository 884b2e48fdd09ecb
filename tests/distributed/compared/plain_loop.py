"""A plain loop over a global batch of 24 rows, with the loss that the command line names."""

import sys

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

import popdist_torch.horovod as hvd

LOSSES = {
    "ignore_index": lambda s, y, x: F.cross_entropy(s, y.masked_fill(x[:, 0] > 0.3, -100)),
    "sum": lambda s, y, _: F.cross_entropy(s, y, reduction="sum"),
    "mean": lambda s, y, _: F.cross_entropy(s, y),
}


def train(loss, data):
    torch.manual_seed(1)
    layers = (torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(5, 4))
    model = torch.nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    rows = hvd.local_batch_size(24)
    own = slice(hvd.rank() * rows, (hvd.rank() + 1) * rows)
    for _ in range(100):
        x = torch.randn(24, 6, generator=data).double()[own]
        y = torch.randint(0, 4, (24,), generator=data)[own]
        optimizer.zero_grad()
        loss(model(x), y, x).backward()
        optimizer.step()


hvd.init()
torch.set_num_threads(1)
train(LOSSES[sys.argv[1]], torch.Generator().manual_seed(5))
raise AssertionError("a comparison ends before")
