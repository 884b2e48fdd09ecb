"""A plain loop over a global batch of 24 rows, with the loss that the command line names."""

import sys

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

import popdist_torch.horovod as hvd

LOSSES = {
    "ignore_index": lambda s, y, x: F.cross_entropy(s, y.masked_fill(x[:, 0] > 0.3, -100)),
    "weighted": lambda s, y, x: (
        (F.cross_entropy(s, y, reduction="none") * x[:, 2].abs()).sum() / x[:, 2].abs().sum()
    ),
    "rmse": lambda s, y, _: F.mse_loss(s, F.one_hot(y, 4).to(s.dtype)).sqrt(),
    "contrastive": lambda s, y, _: F.cross_entropy(
        F.normalize(s) @ F.normalize(s).T / 0.5, torch.arange(len(y))
    ),
    "variance": lambda s, *_: F.relu(1 - s.std(0)).mean(),
    "dice": lambda s, y, _: (
        1 - 2 * (s.sigmoid() * F.one_hot(y, 4)).sum() / (s.sigmoid().sum() + len(y))
    ),
    "topk": lambda s, y, _: F.cross_entropy(s, y, reduction="none").topk(3).values.mean(),
    "sum": lambda s, y, _: F.cross_entropy(s, y, reduction="sum"),
    "mean": lambda s, y, _: F.cross_entropy(s, y),
    "smoothed": lambda s, y, _: F.cross_entropy(s, y, label_smoothing=0.1),
    "squares": lambda s, y, _: F.mse_loss(s, F.one_hot(y, 4).to(s.dtype)),
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
