"""A plain loop of torch over Horovod: each loss of the table has a model and an optimizer."""

import copy

import torch

import popdist_torch.horovod as hvd
from tests.properties.torch_losses import CLASSES, LOSSES, WIDTH, Net

ROWS, UPDATES, RATE = 48, 1, 0.05


def batches(rank, size):
    """A process's rows of the global batches."""
    generator = torch.Generator().manual_seed(6)
    mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    for _ in range(UPDATES):
        x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        yield x[mine], torch.randint(0, CLASSES, (ROWS,), generator=generator)[mine]


def nets(names=LOSSES):
    """Losses, each with a network that starts as all others do."""
    torch.manual_seed(1)
    first = Net().double()
    return [
        (copy.copy(loss), copy.deepcopy(first))
        for name, (_, loss) in LOSSES.items()
        if name in names
    ]


def main():
    hvd.init()
    torch.set_num_threads(1)
    for loss, net in nets():
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
        for x, y in batches(hvd.rank(), hvd.size()):
            optimizer.zero_grad()
            loss(net, x, y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
