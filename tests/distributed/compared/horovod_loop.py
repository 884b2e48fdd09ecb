"""A loop as Horovod's own examples have it: the batch size is that of one process."""

import sys

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

hvd.init()
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(96, 6), torch.randint(0, 4, (96,)))
sampler = torch.utils.data.distributed.DistributedSampler(
    data, num_replicas=hvd.size(), rank=hvd.rank()
)
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), 0)


def with_state():
    """Makes a step with gradients of zero, as there is no state yet."""
    hvd.broadcast_optimizer_state(optimizer, 0)


if "before" in sys.argv:
    with_state()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
if "after" in sys.argv:
    with_state()
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
