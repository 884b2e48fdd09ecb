"""What is written is what trains: the ways in which a plain loop could go wrong without a word.

Each program runs unchanged in one process of plain torch on the global batch, and on two real ranks
with other rows on each. Either the weights are the same, or every rank raises the error named here.
"""

import copy
import functools
import logging
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import popdist_torch.horovod as hvd
from popdist.errors import PopdistError
from tests.distributed.jobs import run_job
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


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def clipped(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def clipped_with_declared_accumulation(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model, backward_passes_per_step=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            (loss_of(model, world.rows(2 * step + part)) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def clipped_with_undeclared_accumulation(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for micro in range(2 * STEPS):
        (loss_of(model, world.rows(micro)) / 2).backward()
        if micro % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    return model


@program
def clipped_with_no_sync(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if world.ranks > 1:
            with optimizer.no_sync():
                (loss_of(model, world.rows(2 * step)) / 2).backward()
        else:
            (loss_of(model, world.rows(2 * step)) / 2).backward()
        (loss_of(model, world.rows(2 * step + 1)) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
    return model


@program
def sum_of_gradients_that_are_never_reset(world):
    """Gradients of earlier steps stay; a sum must not count them twice."""
    model = Net()
    optimizer = sgd(model)
    if world.ranks > 1:
        optimizer = world.optimizer(optimizer, model, op=hvd.Sum)
    for step in range(STEPS):
        scale = RANKS if world.ranks == 1 else 1  # the sum of means is the mean of all, times ranks
        (loss_of(model, world.rows(step)) * scale / 10).backward()
        optimizer.step()
    return model


@program
def two_losses_and_two_optimizers(world):
    """As a generator and its judge: each loss leaves gradients in the other's parameters."""
    model, judge = Net(), Net()
    ours, theirs = (
        world.optimizer(sgd(model), model),
        world.optimizer(torch.optim.Adam(judge.parameters(), lr=0.01), judge),
    )
    for step in range(STEPS):
        x, y = world.rows(step)
        model.zero_grad()
        nn.functional.cross_entropy(model(x) + judge(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        ours.step()
        judge.zero_grad()
        loss_of(judge, (x * 2, y)).backward()
        nn.utils.clip_grad_value_(judge.parameters(), 0.01)
        theirs.step()
    return nn.ModuleList([model, judge])


@program
def scaled_and_unscaled(world):
    """The third step overflows on one rank; all of them must leave it out."""
    model = Net(torch.float32)
    optimizer = world.optimizer(sgd(model), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step, dtype=torch.float32)
        if step == 2 and world.rank == 0:
            x[0, 0] = float("inf")
        scaler.scale(loss_of(model, (x, y))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**8
    return model


@program
def autocast(world):
    model = Net(torch.float32)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, world.rows(step, dtype=torch.float32))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def compiled(world):
    """Compiled once: neither hooks nor the exchange make Dynamo look again."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    run = torch.compile(model, backend="aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(run, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    return model


@program
def lbfgs_with_line_search(world):
    model = Net()
    optimizer = world.optimizer(
        torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe"), model
    )
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, world.rows(step, count=16))
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


@program
def closure_that_clips(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, world.rows(step))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            return loss

        optimizer.step(closure)
    return model


@program
def thawed_in_mid_training(world):
    """Weights that were frozen when the optimizer was distributed."""
    model = Net()
    model.first.requires_grad_(requires_grad=False)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if step == 2:
            model.requires_grad_()
            model.last.requires_grad_(requires_grad=False)
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def parameters_added_in_mid_training(world):
    model = Net()
    optimizer = world.optimizer(torch.optim.SGD(model.first.parameters(), lr=0.2), model)
    for step in range(STEPS):
        if step == 2:
            optimizer.add_param_group({"params": list(model.last.parameters()), "lr": 0.1})
        model.zero_grad()
        loss_of(model, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.first.parameters(), 0.05)
        optimizer.step()
    return model


@program
def tied_weights(world):
    model = Net()
    model.last = nn.Linear(7, 7, dtype=torch.float64)
    model.middle = nn.Linear(7, 7, dtype=torch.float64)
    model.middle.weight = model.last.weight
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = torch.tanh(model.middle(torch.tanh(model.first(x))))
        nn.functional.cross_entropy(model.last(hidden), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def moving_average_of_weights(world):
    model = Net()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()
        average.update_parameters(model)
    return average.module


@program
def state_loaded_in_mid_training(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    kept = None
    for step in range(STEPS):
        if step == 1:
            kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step == 3:
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def sharpness_aware(world):
    """Weights move between two passes of a step, by the gradients of the first."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        with torch.no_grad():
            moved = [0.1 * parameter.grad for parameter in model.parameters()]
            torch._foreach_add_(list(model.parameters()), moved)
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moved)
        optimizer.step()
    return model


def checkpointed(world, *, reentrant):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = checkpoint(model.first, x.requires_grad_(), use_reentrant=reentrant)
        nn.functional.cross_entropy(model.last(torch.tanh(hidden)), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


def wholly_checkpointed(world, *, clip):
    """No gradient comes from the outer pass, so only the step ends the exchange."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = checkpoint(model, x.requires_grad_(), use_reentrant=True)
        nn.functional.cross_entropy(hidden, y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


PROGRAMS["checkpointed"] = functools.partial(checkpointed, reentrant=False)
PROGRAMS["checkpointed, reentrant"] = functools.partial(checkpointed, reentrant=True)
PROGRAMS["wholly checkpointed, reentrant"] = functools.partial(wholly_checkpointed, clip=False)


@program
def sparse_embedding(world):
    model = nn.Sequential(nn.Embedding(9, 5, sparse=True, dtype=torch.float64), Net())
    torch.nn.init.uniform_(model[0].weight, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = world.optimizer(optimizer, model, sparse_as_dense=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        _, y = world.rows(step)
        loss_of(model, (y * 2 + 1, y)).backward()
        optimizer.step()
    return model


@program
def complex_weights(world):
    model = Net()
    model.phase = nn.Parameter(torch.linspace(0, 1, 35, dtype=torch.complex128).view(5, 7))
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = torch.tanh((x.to(torch.complex128) @ (model.phase * (1 + 2j))).abs())
        nn.functional.cross_entropy(model.last(hidden), y).backward()
        nn.utils.clip_grad_norm_([model.phase], 0.05)
        optimizer.step()
    model.phase = nn.Parameter(torch.view_as_real(model.phase.detach()))
    return model


@program
def per_parameter_hooks(world):
    """A hook that is linear in the gradient gives the same before and after averaging."""
    model = Net()
    model.first.weight.register_hook(lambda gradient: gradient * 0.5)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()
    return model


@program
def gradients_of_torch_func(world):
    """No backward pass runs; the program sets the gradients itself."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        x, y = world.rows(step)

        def loss(parameters, x=x, y=y):
            scores = torch.func.functional_call(model, parameters, (x,))
            return nn.functional.cross_entropy(scores, y)

        gradients = torch.func.grad(loss)(
            {name: p.detach() for name, p in model.named_parameters()}
        )
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    return model


@program
def clipped_gradients_of_autograd_grad(world):
    """Gradients that the program sets are shared before it changes them."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        gradients = torch.autograd.grad(loss_of(model, world.rows(step)), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        if world.ranks > 1:
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def branches_of_single_ranks(world):
    """Some layers have a gradient on one rank only."""
    model = nn.ModuleList([Net(), Net()])
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        if world.ranks > 1:
            loss = loss_of(model[world.rank], (x, y))
        else:
            halves = zip(x.chunk(RANKS), y.chunk(RANKS), strict=True)
            loss = sum(loss_of(m, half) for m, half in zip(model, halves, strict=True)) / RANKS
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


def in_type(world, dtype):
    model = Net(dtype)
    optimizer = world.optimizer(torch.optim.SGD(model.parameters(), lr=0.25), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step, dtype=dtype)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


PROGRAMS["float16"] = functools.partial(in_type, dtype=torch.float16)
PROGRAMS["bfloat16"] = functools.partial(in_type, dtype=torch.bfloat16)


@program
def on_meta_first(world):
    with torch.device("meta"):
        model = Net()
    model.to_empty(device="cpu")
    for index, parameter in enumerate(model.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(index))
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()
    return model


@program
def an_optimizer_for_each_parameter(world):
    """Each is stepped and reset on its own, as where updates are to save memory."""
    model = Net()
    optimizers = [
        world.optimizer(torch.optim.SGD([p], lr=0.2, momentum=0.9), model)
        for p in model.parameters()
    ]
    for step in range(STEPS):
        loss_of(model, world.rows(step)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model


@program
def average_copied_in_mid_training(world):
    """An average of weights is made, and taken over, while training runs."""
    model, average = Net(), None
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()
        average = copy.deepcopy(model) if average is None else average
        for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
            kept.data.lerp_(parameter.data, 0.5)
        if step == 2:
            model.load_state_dict(average.state_dict())
    return model


# Programs that cannot be right: each must end in this error, on every rank.


def accumulation_that_ends_early(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model, backward_passes_per_step=2)
    loss_of(model, world.rows(0)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def another_learning_rate(world):
    """As of a schedule that follows each process's own validation loss."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.2 / (1 + step * world.rank)
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()


def weights_loaded_on_one_rank(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if step == 2 and world.rank == 0:
            model.load_state_dict({name: v * 0.5 for name, v in model.state_dict().items()})
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()


def a_step_left_out_on_one_rank(world):
    """As where a program skips a batch that looks bad to it, by its own loss."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        if not (step == 1 and world.rank == 1):
            optimizer.step()


def a_rank_without_a_backward_pass(world):
    """As where a rank's batch is empty: what the others clip is not what it has."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        if not (step == STEPS - 1 and world.rank == 1):
            loss_of(model, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()


def optimizer_state_loaded_on_one_rank(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if step == 2 and world.rank == 0:
            state = copy.deepcopy(optimizer.state_dict())
            state["state"][0]["momentum_buffer"] *= 0.5
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()


def frozen_on_one_rank(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        model.first.requires_grad_(requires_grad=step < 2 or world.rank == 0)
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()


def weights_changed_past_torch_on_one_rank(world):
    """Changes through ``data`` do not count as changes for torch."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(10):
        if step == 2 and world.rank == 0:
            model.last.weight.data.clamp_(-0.1, 0.1)
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()


def gradients_set_and_clipped(world):
    """Nothing has shared the gradients when the program clips them."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    gradients = torch.autograd.grad(loss_of(model, world.rows(0)), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def hook_after_accumulation(world):
    """It would change gradients while they are being exchanged."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    model.first.weight.register_post_accumulate_grad_hook(
        lambda parameter: setattr(parameter, "grad", parameter.grad.clamp(-0.01, 0.01))
    )
    loss_of(model, world.rows(0)).backward()
    optimizer.step()


ERRORS = {
    "optimizer state loaded on one rank": (
        optimizer_state_loaded_on_one_rank,
        "PD007",
        "state of first.weight",
    ),
    "frozen on one rank": (frozen_on_one_rank, "PD007", "first.weight is trained"),
    "weights changed past torch on one rank": (
        weights_changed_past_torch_on_one_rank,
        "PD007",
        "values of last.weight",
    ),
    "gradients set and clipped": (gradients_set_and_clipped, "PD320", "synchronize()"),
    "hook after accumulation": (hook_after_accumulation, "PD312", "first.weight"),
    "accumulation that ends early": (accumulation_that_ends_early, "PD320", "synchronize()"),
    "another learning rate": (another_learning_rate, "PD007", "0.2 on instance 0; 0.1 on"),
    "weights loaded on one rank": (weights_loaded_on_one_rank, "PD007", "values of first.weight"),
    "a step left out on one rank": (a_step_left_out_on_one_rank, "PD007", "updates so far: 2 on"),
    "wholly checkpointed, clipped": (
        functools.partial(wholly_checkpointed, clip=True),
        "PD320",
        "use_reentrant=True",
    ),
}


# Loaders under a loop: those that give all ranks the same rows bring one warning.


class Alike(torch.utils.data.Dataset):
    """As of a benchmark: every sample is the same."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.ones(5, dtype=torch.float64), torch.tensor(1)


def table():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(16, 5, generator=generator, dtype=torch.float64)
    return torch.utils.data.TensorDataset(x, torch.arange(16) % 3)


LOADERS = {
    "in order": (lambda: torch.utils.data.DataLoader(table(), 4), True),
    "shuffled alike": (
        lambda: torch.utils.data.DataLoader(
            table(), 4, shuffle=True, generator=torch.Generator().manual_seed(1)
        ),
        True,
    ),
    "a part of the indices": (
        lambda: torch.utils.data.DataLoader(
            table(), 4, sampler=torch.utils.data.SubsetRandomSampler(range(8), torch.Generator())
        ),
        True,
    ),
    "shuffled by rank": (
        lambda: torch.utils.data.DataLoader(
            table(), 4, shuffle=True, generator=torch.Generator().manual_seed(hvd.rank())
        ),
        False,
    ),
    "divided": (
        lambda: torch.utils.data.DataLoader(table(), 4, sampler=hvd.DistributedSampler(table())),
        False,
    ),
    "samples alike": (lambda: torch.utils.data.DataLoader(Alike(), 4), False),
    "no loader": (lambda: [table()[:4], table()[4:8]], False),
}


@contextmanager
def warnings_of_popdist():
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("popdist.torch").addHandler(handler)
    yield said
    logging.getLogger("popdist.torch").removeHandler(handler)


def warned(loader):
    """The warnings of a loop over a loader."""
    model = Net()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    with warnings_of_popdist() as said:
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return said


def one_of_two_optimizers(world):
    """The judge's optimizer was forgotten; another one works on the model's shared gradients."""
    model, judge = Net(), Net()
    ours = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    theirs, also_ours = sgd(judge), sgd(model)
    with warnings_of_popdist() as said:
        for step in range(STEPS):
            for module, optimizers in ((model, (ours, also_ours)), (judge, (theirs,))):
                module.zero_grad()
                loss_of(module, world.rows(step)).backward()
                for optimizer in optimizers:
                    optimizer.step()
    return said


def no_optimizer_wrapped(world):
    """The first of Horovod's six steps without the fourth."""
    model = Net()
    optimizer = sgd(model)
    with warnings_of_popdist() as said:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, world.rows(step)).backward()
            optimizer.step()
    return said


def error_of(function, world):
    try:
        function(world)
    except PopdistError as error:
        return str(error)
    return "no error"


def run_all():
    hvd.init()
    world, answer = World(RANKS), {}
    answer["forgotten"] = no_optimizer_wrapped(world)  # the first: nothing is distributed yet
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, function in PROGRAMS.items():
            answer[name] = flat(function(world))
        for name, (function, *_) in ERRORS.items():
            answer[name] = error_of(function, world)
    answer["alone"] = one_of_two_optimizers(world)
    for name, (loader, _) in LOADERS.items():
        answer[f"warned, {name}"] = warned(loader())
    answer["late"] = error_of(a_rank_without_a_backward_pass, world)  # the last: ranks part
    return answer


@pytest.fixture(scope="module")
def answers():
    return run_job(run_all, instances=RANKS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_trains_as_one_process_on_the_global_batch(answers, name):
    for answer in answers:
        np.testing.assert_array_equal(answer[name], answers[0][name])
    tolerances = {"scaled_and_unscaled": 3e-6, "autocast": 2e-3, "float16": 1e-3, "bfloat16": 1e-2}
    tolerance = tolerances.get(name, 1e-12)
    expected = flat(PROGRAMS[name](World(1)))
    np.testing.assert_allclose(answers[0][name], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ERRORS)
def test_program_that_cannot_be_right_says_so_on_every_rank(answers, name):
    for answer in answers:
        assert all(part in answer[name] for part in ERRORS[name][1:]), answer[name]


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_that_gives_all_ranks_the_same_rows_is_named_once(answers, name):
    first, *others = (answer[f"warned, {name}"] for answer in answers)
    assert not any(others)
    assert len(first) == LOADERS[name][1]
    for warning in first:
        assert "[PD326]" in warning
        assert "DataLoader(TensorDataset of 16 samples, batch_size=4, sampler=" in warning
        assert "popdist_torch.horovod.DistributedSampler" in warning


@pytest.mark.parametrize("way", ["alone", "forgotten"])
def test_an_optimizer_that_nobody_distributed_is_named_once(answers, way):
    assert len(answers[0][way]) == 1
    assert answers[1][way] == []
    for part in ("[PD327]", "SGD with 4 parameters, the first of shape [7, 5]"):
        assert part in answers[0][way][0]


def test_rank_that_clipped_what_another_did_not_have_says_so(answers):
    assert "PD320" in answers[0]["late"]
    assert "some process had none" in answers[0]["late"]
