"""Plain loops with batch normalization over the rows of all ranks.

In one process of plain torch, the layers are those of torch.nn.
Running statistics are compared too.
"""

import torch
from torch import nn

import popdist_torch
import popdist_torch.horovod as hvd
from tests.distributed.torch_loops import RANKS, STEPS, Programs, World, sgd

NORMS = program = Programs()
KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def network(world, *, places=0, dtype=torch.float64, **kwargs):
    """A network with two norms; on ranks, they are made to synchronise in two ways."""
    torch.manual_seed(3)
    norm = KINDS[max(places - 1, 0)]
    layers = [nn.Linear(5, 4), nn.Flatten(), norm(4, **kwargs), nn.Tanh(), norm(4, **kwargs)]
    if places:
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[places - 1]
        layers[:2] = [kind(2, 4, 2)]
    model = nn.Sequential(*layers).to(dtype)
    for number, layer in enumerate(model):
        if isinstance(layer, norm) and kwargs.get("affine", True):
            nn.init.normal_(layer.weight, 1 + number)
    if world.ranks == 1:
        return model
    kind = popdist_torch.SyncBatchNorm if places != 1 else hvd.SyncBatchNorm
    return kind.convert_sync_batchnorm(model)


def with_statistics(model):
    for name, buffer in [*model.named_buffers()]:
        model.register_parameter(
            name.replace(".", "_"), nn.Parameter(buffer.double(), requires_grad=False)
        )
    return model


def images(world, step, places):
    """Rows ``[rows, 2, 4, ...]`` whose means are far from zero, and other on each rank."""
    generator = torch.Generator().manual_seed(40 + step)
    x = torch.randn(RANKS * 3, 2, *[4] * places, generator=generator, dtype=torch.float64)
    x = x * 2 + torch.arange(RANKS * 3.0).view(-1, *[1] * (places + 1))
    return x[world.rank * 3 :][:3] if world.ranks > 1 else x


def trained(world, *, places=0, **kwargs):
    model = network(world, places=places, **kwargs)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        x = images(world, step, places) if places else world.rows(step)[0]
        model.train(step != 2)  # evaluation mode takes the running statistics
        optimizer.zero_grad()
        model(x).sin().mean().backward()
        optimizer.step()
    return with_statistics(model)


@program
def normalized_rows(world):
    return trained(world)


@program
def normalized_signals(world):
    return trained(world, places=1)


@program
def normalized_images(world):
    return trained(world, places=2, momentum=None)


@program
def normalized_volumes(world):
    return trained(world, places=3, affine=False)


@program
def normalized_without_running_statistics(world):
    model = network(world, track_running_stats=False)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(world.rows(step)[0]).sin().mean().backward()
        optimizer.step()
    return model


@program
def normalized_uneven_rows(world):
    return trained_on_parts(world, 1)


@program
def normalized_with_an_empty_rank(world):
    return trained_on_parts(world, 0)


def trained_on_parts(world, first):
    """So many rows on the first rank, others on the second; a loss is a sum over a mean number."""
    model = network(world)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        x = World(1).rows(step)[0]
        mine = (x[:first], x[first:])[world.rank] if world.ranks > 1 else x
        optimizer.zero_grad()
        (model(mine).sin().sum() / (len(x) / world.ranks)).backward()
        optimizer.step()
    return with_statistics(model)


@program
def penalty_through_norms(world):
    """The gradient of a gradient, which depends on the rows of the other rank."""
    model = network(world)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = world.rows(step)[0].requires_grad_()
        made = model(x)
        (slopes,) = torch.autograd.grad(made.cos().sum(), x, create_graph=True)
        (made.sin().mean() + 0.001 * slopes.square().sum(1).mean()).backward()
        optimizer.step()
    return with_statistics(model)


@program
def normalized_far_from_zero(world):
    """In single precision, squares of the values have no digits of the variance."""
    norm = nn.BatchNorm1d(5) if world.ranks == 1 else popdist_torch.SyncBatchNorm(5)
    model = nn.Sequential(norm, nn.Linear(5, 3))
    torch.manual_seed(2)
    nn.init.normal_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = world.rows(step)[0].float()
        model(x + 1000).sin().mean().backward()
        optimizer.step()
    return with_statistics(model)


@program
def normalized_under_autocast(world):
    model = network(world, dtype=torch.float32)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            made = model(world.rows(step)[0].float())
        assert made.dtype == torch.bfloat16
        made.float().square().mean().backward()
        optimizer.step()
    return with_statistics(model)


@program
def normalized_and_compiled(world):
    torch._dynamo.reset()
    model = network(world)
    optimizer = world.optimizer(sgd(model), model)
    runs = torch.compile(model, backend="aot_eager")
    for step in range(STEPS):
        optimizer.zero_grad()
        runs(world.rows(step)[0]).sin().mean().backward()
        optimizer.step()
    return with_statistics(model)
