"""Plain loops whose losses need rows of all ranks, through Horovod's collectives.

In one process of plain torch, all rows are there; no collective is called.
"""

import torch
from torch import nn

import popdist_torch.horovod as hvd
from tests.distributed.torch_loops import RANKS, ROWS, STEPS, Net, Programs, sgd

COLLECTIVES = program = Programs()
F = nn.functional


def gathered(world, rows):
    return hvd.allgather(rows) if world.ranks > 1 else rows


def averaged(world, value):
    return hvd.allreduce(value) if world.ranks > 1 else value


def parts(rows):
    """All rows in one process, by rank."""
    return rows.chunk(RANKS)


def trained(world, loss, model=None):
    """Trains a network on the loss of each step's rows."""
    model = Net() if model is None else model
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(world, model, *world.rows(step)).backward()
        optimizer.step()
    return model


def features(model, x):
    return F.normalize(model(x), dim=1)


@program
def contrast_of_own_rows_with_all(world):
    """The usual loss of two views: each rank has the rows, and all ranks the columns."""

    def loss(world, model, x, _):
        one, other = features(model, x), features(model, x * 1.5 + 0.1)
        labels = torch.arange(len(x)) + world.rank * len(x)
        scores = one @ gathered(world, other).T
        return F.cross_entropy(scores / 0.1, labels) + 0.1 * one.square()[:, 0].mean()

    return trained(world, loss)


@program
def contrast_of_all_rows_on_each_rank(world):
    """Each rank computes the same loss from two grouped gathers."""

    def loss(world, model, x, _):
        pair = [features(model, x), features(model, x * 1.5 + 0.1)]
        one, other = hvd.grouped_allgather(pair) if world.ranks > 1 else pair
        return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))

    return trained(world, loss)


@program
def gather_of_uneven_rows(world):
    def loss(world, model, x, _):
        mine = x[: 1 + world.rank] if world.ranks > 1 else torch.cat([x[:1], x[ROWS : ROWS + 2]])
        return gathered(world, model(mine)).cumsum(0).square().mean()

    return trained(world, loss)


@program
def gradient_of_a_gradient_through_a_gather(world):
    def loss(world, model, x, _):
        x = x.requires_grad_()
        scores = gathered(world, model(x))
        (slopes,) = torch.autograd.grad(scores.pow(3).sum() / RANKS, x, create_graph=True)
        if world.ranks == 1:
            slopes = slopes * RANKS  # each of the ranks has this sum
        return slopes.square().sum(1).mean()

    return trained(world, loss)


@program
def mixture_of_experts(world):
    """Each rank has an expert, and each sends a half of its rows to every expert."""

    def loss(world, model, x, y):
        hidden = model[-1](x)
        if world.ranks > 1:
            splits = torch.tensor([1, ROWS - 1], dtype=torch.int32)
            sent, received = hvd.alltoall(hidden, splits=splits)
            scores = model[world.rank](sent)
            scores, _ = hvd.alltoall(scores, splits=received)
        else:
            experts = torch.tensor([0] + [1] * (ROWS - 1)).repeat(RANKS)
            of_each = torch.stack([expert(hidden) for expert in model[:RANKS]])
            scores = of_each[experts, torch.arange(len(x))]
        return F.cross_entropy(scores, y)

    torch.manual_seed(4)
    layers = [nn.Linear(6, 3) for _ in range(RANKS)] + [nn.Linear(5, 6)]
    return trained(world, loss, nn.ModuleList(layers).double())


@program
def rows_exchanged_by_halves(world):
    """An alltoall without splits."""

    def loss(world, model, x, _):
        scores = model(x)
        if world.ranks > 1:
            return hvd.alltoall(scores).cumsum(0).square().mean()
        halves = [list(parts(rows)) for rows in parts(scores)]
        got = [torch.cat([one[rank] for one in halves]) for rank in range(RANKS)]
        return torch.stack(got).cumsum(1).square().mean()

    return trained(world, loss)


def scattered(world, **settings):
    """Each rank has one part of the sum or the average of all ranks' tensors."""
    scale = (0.5 if settings else 1) * (1 if settings.get("op") == "Sum" else 1 / RANKS)
    given = dict(settings)
    if "op" in given:
        given["op"] = getattr(hvd, given["op"])

    def loss(world, model, x, _):
        scores = model(x)
        if world.ranks > 1:
            one, other = hvd.grouped_reducescatter([scores, scores * 2], **given)
            part = hvd.reducescatter(scores, **given)
        else:
            total = sum(parts(scores)) * scale
            one, other = total, total * 2
            part = total
        return (one * other).pow(2).mean() + part.square().mean()

    return trained(world, loss)


COLLECTIVES["reducescatter, average"] = scattered
COLLECTIVES["reducescatter, sum, scaled"] = lambda world: scattered(
    world, op="Sum", prescale_factor=0.25, postscale_factor=2.0
)


@program
def rows_of_the_first_rank_for_all(world):
    """Both compare their rows with those that one rank has."""

    def loss(world, model, x, _):
        scores = model(x)
        if world.ranks > 1:
            anchor = hvd.broadcast(scores, 0)
            return (scores - 0.5 * anchor).square().mean()
        anchor = parts(scores)[0].repeat(RANKS, 1)
        return (scores - 0.5 * anchor).square().mean()

    return trained(world, loss)


@program
def statistics_of_all_rows(world):
    """Normalized by hand; gradients of sums are expanded tensors, and one call is in place."""

    def loss(world, model, x, y):
        hidden = model.first(x)
        mean = hidden.mean(0)
        if world.ranks > 1:
            mean = hvd.allreduce_(mean * 1)
        spread = averaged(world, (hidden - mean).square().mean(0))
        scores = model.last((hidden - mean) / (spread + 0.1).sqrt())
        pair = [scores.mean(0), hidden.mean(0)]
        if world.ranks > 1:
            pair = hvd.grouped_allreduce(pair, op=hvd.Sum, postscale_factor=1 / RANKS)
        return F.cross_entropy(scores, y) + pair[0].sum() + pair[1].square().sum()

    return trained(world, loss)


@program
def loss_that_all_ranks_average(world):
    def loss(world, model, x, y):
        return averaged(world, F.cross_entropy(model(x), y)).square()

    return trained(world, loss)


@program
def mean_over_what_is_no_padding(world):
    """Each rank divides by the mean number of all ranks."""

    def loss(world, model, x, y):
        count = averaged(world, (y != 1).sum().double())
        return F.cross_entropy(model(x), y, ignore_index=1, reduction="sum") / count

    return trained(world, loss)
