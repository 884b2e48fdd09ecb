"""Plain loops that cannot be right: each ends in an error, or a warning, that names the cause.

Each program runs on two real ranks with other rows on each. Every rank raises the error named here.
"""

import copy
import os

import horovod.torch
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import popdist.poptorch
import popdist_torch
import popdist_torch.horovod as hvd
from popdist_torch.rounds import ROUNDS
from popdist_torch.unexchanged import BY_HAND
from tests.distributed.jobs import run_job
from tests.distributed.torch_loops import (
    RANKS,
    STEPS,
    Net,
    World,
    error_of,
    loss_of,
    sgd,
    step_once,
    warnings_of_popdist,
)


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


def wholly_checkpointed_and_clipped(world):
    """No gradient comes from the outer pass, so only the step ends the exchange."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    x, y = world.rows(0)
    hidden = checkpoint(model, x.requires_grad_(), use_reentrant=True)
    nn.functional.cross_entropy(hidden, y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def hook_that_clips(world):
    """It clips the gradient of each rank."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    model.first.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    for step in range(STEPS):
        step_once(model, optimizer, world.rows(step))


def largest_of_all_ranks(world):
    """The gradient of a maximum belongs to the rank that has it, which Horovod does not say."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    scores = model(world.rows(0)[0])
    (scores - hvd.allreduce(scores, op=hvd.Max)).square().mean().backward()
    optimizer.step()


def noise_on_gradients(world):
    """Each rank draws noise of its own."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    generator = torch.Generator().manual_seed(world.rank)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        noise = torch.randn(3, generator=generator, dtype=torch.float64)
        model.last.bias.grad.add_(noise, alpha=0.01)
        optimizer.step()


def local_batch_statistics(world):
    """torch's layer that is to synchronise statistics does not, without torch.distributed."""
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    step_once(model, world.optimizer(sgd(model), model), world.rows(0))


def sum_and_average(world):
    model = Net()
    world.optimizer(sgd(model), model)
    world.optimizer(sgd(model), model, op=hvd.Sum)


def lazy_layers(world):
    """The optimizer is distributed before a batch has shown the shapes."""
    model = nn.Sequential(nn.LazyLinear(3, dtype=torch.float64))
    world.optimizer(sgd(model), model)


def sharded_parameters(world):
    """As those of FSDP, here over a mesh of this process alone."""
    from torch import distributed
    from torch.distributed.tensor import distribute_module, init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    model = distribute_module(Net(), init_device_mesh("cpu", (1,)))
    try:
        world.optimizer(sgd(model), model)
    finally:
        distributed.destroy_process_group()


class Outer(torch.optim.Optimizer):
    """As some published ones, it shares all with an inner optimizer, and initialises nothing."""

    def __init__(self, inner):
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, {}


def optimizer_without_hooks(world):
    model = Net()
    world.optimizer(Outer(sgd(model)), model)


def penalty_of_exchanged_gradients(world):
    """The graph of a gradient ends where it is exchanged."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    loss_of(model, world.rows(0)).backward(create_graph=True)
    penalty = sum(parameter.grad.square().sum() for parameter in model.parameters())
    (loss_of(model, world.rows(0)) + penalty).backward()
    optimizer.step()


def split_alone(world):
    """Each rank splits the data for itself, and the sampler divides what it has."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    seed = torch.Generator().manual_seed(world.rank)
    part, _ = torch.utils.data.random_split(table(), [12, 4], seed)
    for batch in torch.utils.data.DataLoader(part, 3, sampler=hvd.DistributedSampler(part)):
        step_once(model, optimizer, batch)


def split_alone_under_a_model(world):
    """The same with PopTorch's loader."""
    seed = torch.Generator().manual_seed(world.rank)
    part, _ = torch.utils.data.random_split(table(), [12, 4], seed)
    options = popdist.poptorch.Options()
    torch.manual_seed(1)
    model = Loss()
    training = popdist_torch.trainingModel(model, options, sgd(model))
    for x, y in popdist_torch.DataLoader(options, part, 3):
        training(x, y)


class Loss(nn.Module):
    """A network whose output is its loss."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, y):
        return loss_of(self.net, (x, y))


def optimizer_on_one_rank(world):
    """The other rank has its second optimizer too late."""
    model, judge = Net(), Net()
    optimizer = world.optimizer(sgd(model), model)
    if world.rank == 0:
        world.optimizer(sgd(judge), judge)
    try:
        step_once(model, optimizer, world.rows(0))
    finally:
        if world.rank == 1:
            world.optimizer(sgd(judge), judge)


def optimizer_on_one_rank_beyond_room(world):
    """Only one rank has more optimizers than a round has numbers for."""
    held = []
    while (ROUNDS.count + 1) % 32:
        model = Net()
        held.append(world.optimizer(sgd(model), model))
    optimizer_on_one_rank(world)


def embedding_that_shortens(world):
    """Each rank's call changes the words that it looks up."""
    model = nn.Embedding(4, 3, max_norm=0.5, dtype=torch.float64)
    optimizer = world.optimizer(sgd(model), model)
    model(torch.tensor([0, 1 + world.rank])).square().sum().backward()
    optimizer.step()


def statistics_of_horovod(world):
    """Horovod's own layer, on a CPU."""
    model = nn.Sequential(nn.Linear(5, 3), horovod.torch.SyncBatchNorm(3)).double()
    step_once(model, world.optimizer(sgd(model), model), world.rows(0))


ERRORS = {
    "embedding that shortens": (
        embedding_that_shortens,
        "PD007",
        "Embedding(4, 3, max_norm=0.5)",
        "layer.weight.renorm_(2, 0, 0.5)",
    ),
    "Horovod's statistics": (
        statistics_of_horovod,
        "PD315",
        "SyncBatchNorm(3, ",
        "popdist_torch.SyncBatchNorm.convert_sync_batchnorm(model)",
    ),
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
    "wholly checkpointed, clipped": (wholly_checkpointed_and_clipped, "PD320", "use_reentrant"),
    "hook that clips": (hook_that_clips, "PD314", "first.weight, ", "test_torch_refused.py:"),
    "largest of all ranks": (largest_of_all_ranks, "PD308", "allreduce(op=Max)", "detach()"),
    "noise on gradients": (noise_on_gradients, "PD007", "values of last.bias", "the same seed"),
    "local batch statistics": (local_batch_statistics, "PD315", "SyncBatchNorm(3, "),
    "sum and average": (sum_and_average, "PD308", "last.bias"),
    "lazy layers": (lazy_layers, "PD310", "0.bias has no shape yet"),
    "sharded parameters": (sharded_parameters, "PD328", "DTensor"),
    "penalty of exchanged gradients": (penalty_of_exchanged_gradients, "PD332", "autograd.grad("),
    "split alone": (split_alone, "PD007", "data set of 12 samples", "random_split"),
    "split alone, model": (split_alone_under_a_model, "PD007", "data set 0", "random_split"),
    "optimizer on one rank": (optimizer_on_one_rank, "PD330", "on this process, ", "rank == 0"),
    "optimizer beyond room": (
        optimizer_on_one_rank_beyond_room,
        "PD330",
        " on average",
        "rank == 0",
    ),
    "optimizer without hooks": (optimizer_without_hooks, "PD308", "Outer", "inside it"),
}


# Loaders under a loop: those that give all ranks the same rows bring one warning.


class Alike(torch.utils.data.Dataset):
    """As of a benchmark: every sample is the same."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.ones(5, dtype=torch.float64), torch.tensor(1)


class Stream(torch.utils.data.IterableDataset):
    """Samples without indices; it may divide them itself."""

    def __init__(self, *, divided):
        self.divided = divided

    def __iter__(self):
        start, step = (hvd.rank(), hvd.size()) if self.divided else (0, 1)
        return iter([table()[index] for index in range(start, 16, step)])


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
    "stream": (lambda: torch.utils.data.DataLoader(Stream(divided=False), 4), True),
    "divided stream": (lambda: torch.utils.data.DataLoader(Stream(divided=True), 4), False),
}


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


def masked_mean(scores, y, _):
    losses, kept = nn.functional.cross_entropy(scores, y, reduction="none"), scores[:, 0] > 0
    return (losses * kept).sum() / kept.sum()


def uneven_rows(scores, y, rank):
    return nn.functional.cross_entropy(scores[rank:], y[rank:])


def weighted_mean(scores, y, rank):
    weights = torch.tensor([1.0, 2.0, 3.0 + rank], dtype=torch.float64)
    return nn.functional.cross_entropy(scores, y, weight=weights)


# What losses are means over, and what the warning says of their numbers.
class Coded(Net):
    """With a code that follows rows, a count that is equal everywhere, and running statistics."""

    def __init__(self, averaged):
        super().__init__()
        self.norm = nn.BatchNorm1d(7, dtype=torch.float64)
        self.averaged = averaged
        self.register_buffer("code", torch.zeros(7, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        hidden = self.norm(torch.tanh(self.first(x)))
        self.calls += 1
        self.code.lerp_(self.averaged(hidden.detach().sin().mean(0)), 0.1)
        return self.last(hidden - self.code)


def warned_of_buffers(world, averaged):
    model = Coded(averaged)
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    with warnings_of_popdist() as said:
        for step in range(10):
            step_once(model, optimizer, world.rows(step))
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
    with warnings_of_popdist() as said:
        optimizer = sgd(model)
        for step in range(STEPS):
            step_once(model, optimizer, world.rows(step))
    return said


def averaged_by_the_program(world, average):
    """Horovod's page on Adasum, and torch's on distributed training, average like this."""
    BY_HAND.start()
    model = Net()
    with warnings_of_popdist() as said:
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, world.rows(step)).backward()
            average([parameter.grad for parameter in model.parameters()])
            optimizer.step()
    BY_HAND._stop()
    total = sum(parameter.double().sum() for parameter in model.parameters())
    return said, float(total.detach())


def one_by_one(gradients):
    for gradient in gradients:
        gradient.copy_(hvd.allreduce(gradient))


def grouped(gradients):
    horovod.torch.grouped_allreduce_(gradients)


def flat(gradients):
    whole = horovod.torch.allreduce(torch.cat([gradient.flatten() for gradient in gradients]))
    parts = whole.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def trained_for_this_process_alone(world):
    """By an optimizer and by hand; the program says that it means it."""
    BY_HAND.start()
    model = Net()
    optimizer = sgd(model)
    with warnings_of_popdist() as said, popdist_torch.local_training():
        for step in range(STEPS):
            step_once(model, optimizer, world.rows(step))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)
    BY_HAND._stop()
    return said


def updated_by_hand(world, exchanged):
    """Steps without any optimizer; metrics are averaged, which exchanges no gradients."""
    BY_HAND.start()  # it stops where another program of this process has decided
    model = Net()
    with warnings_of_popdist() as said:
        for step in range(STEPS):
            model.zero_grad()
            loss = loss_of(model, world.rows(step))
            loss.backward()
            hvd.average_metrics({"loss": float(loss)})
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * exchanged(parameter.grad))
    return said


def beside_torch_distributed(world):
    """DistributedDataParallel exchanges the gradients of one model, and nobody those of another."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    model, judge = nn.parallel.DistributedDataParallel(Net()), Net()
    optimizers = [(model, sgd(model)), (judge, sgd(judge))]
    try:
        with warnings_of_popdist() as said:
            for step in range(STEPS):
                for module, optimizer in optimizers:
                    step_once(module, optimizer, world.rows(step))
    finally:
        distributed.destroy_process_group()
    return said


def compiled_step(world):
    """What is said of a distributed optimizer whose step Dynamo compiles."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    step_of_optimizer = torch.compile(lambda: optimizer.step(), backend="eager")  # noqa: PLW0108 - what a program compiles
    with warnings_of_popdist() as said:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, world.rows(step)).backward()
            step_of_optimizer()
    return said


def with_other_weights():
    """What `trainingModel` says of weights of its own on each rank."""
    torch.manual_seed(hvd.rank())
    options = popdist.poptorch.Options()
    model = Halved()
    training = popdist_torch.trainingModel(model, options, sgd(model))
    with warnings_of_popdist() as said:
        try:
            training(torch.rand(4, 5) * (1 + hvd.rank()))
        except popdist_torch.Error as error:
            said.append(str(error))
    training.destroy()
    return said


class Halved(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, x):
        out = self.layer(x)
        return out, popdist_torch.identity_loss(out.square(), reduction="mean")


SWITCHED = {
    "state": ("PD007", lambda _: with_other_weights()),
    "rows": ("PD326", lambda _: warned(LOADERS["in order"][0]())),
    "buffers": ("PD311", lambda world: warned_of_buffers(world, lambda mean: mean)),
    "exchange": ("PD327", no_optimizer_wrapped),
    "by-hand": ("PD333", lambda world: updated_by_hand(world, lambda gradient: gradient)),
}


def switched(world):
    """What is said of each program with its check, and with that check alone switched off."""
    answer = {}
    for name, (_, program) in SWITCHED.items():
        answer[name] = program(world)
        os.environ["POPDIST_SKIP_CHECKS"] = name
        answer[f"{name} off"] = program(world)
        del os.environ["POPDIST_SKIP_CHECKS"]
    return answer


AVERAGES = (one_by_one, grouped, flat)


def run_all():
    hvd.init()
    world, answer = World(RANKS), {}
    answer["forgotten"] = no_optimizer_wrapped(world)  # the first: nothing is distributed yet
    answer["by hand"] = updated_by_hand(world, lambda gradient: gradient)
    answer["by hand, averaged"] = updated_by_hand(world, hvd.allreduce)
    for average in AVERAGES:
        answer[average.__name__] = averaged_by_the_program(world, average)
    answer["compiled"] = compiled_step(world)
    answer["local"] = trained_for_this_process_alone(world)
    answer["switched"] = switched(world)
    for name, (function, *_) in ERRORS.items():
        answer[name] = error_of(function, world)
    answer["alone"] = one_of_two_optimizers(world)
    answer["beside DDP"] = beside_torch_distributed(world)
    for name, (loader, _) in LOADERS.items():
        answer[f"warned, {name}"] = warned(loader())
    answer["buffers"] = warned_of_buffers(world, lambda mean: mean)
    answer["averaged buffers"] = warned_of_buffers(world, hvd.allreduce)
    answer["late"] = error_of(a_rank_without_a_backward_pass, world)  # the last: ranks part
    return answer


@pytest.fixture(scope="module")
def answers():
    return run_job(run_all, instances=RANKS, timeout=240)


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
        if name == "stream":
            assert "DataLoader(Stream, a stream)" in warning
            assert "itertools.islice(samples, hvd.rank(), None, hvd.size())" in warning
        else:
            assert "DataLoader(TensorDataset of 16 samples, batch_size=4, sampler=" in warning
            assert "popdist_torch.horovod.DistributedSampler" in warning


@pytest.mark.parametrize("name", SWITCHED)
def test_each_check_can_be_switched_off_by_its_name(answers, name):
    first = answers[0]["switched"]
    assert [SWITCHED[name][0] in said for said in first[name]] == [True]
    assert all(answer["switched"][f"{name} off"] == [] for answer in answers)


def test_buffers_that_follow_the_rows_of_one_rank_are_named_once(answers):
    assert [len(answer["buffers"]) for answer in answers] == [1, 0]
    warning = answers[0]["buffers"][0]
    assert "[PD311]" in warning
    assert "buffer code of Coded" in warning
    assert all(part not in warning for part in ("calls", "norm", "running_mean"))
    assert not any(answer["averaged buffers"] for answer in answers)


def test_updates_by_hand_without_an_exchange_are_named_once(answers):
    assert [len(answer["by hand"]) for answer in answers] == [1, 1]  # both look here
    assert "[PD333]" in answers[0]["by hand"][0]
    assert "4 tensors, the first of shape [" in answers[0]["by hand"][0]
    assert not any(answer["by hand, averaged"] for answer in answers)


@pytest.mark.parametrize("way", ["local", "compiled"])
def test_what_exchanges_or_need_not_is_not_warned_of(answers, way):
    assert [answer[way] for answer in answers] == [[], []]


@pytest.mark.parametrize("average", AVERAGES)
def test_a_program_that_averages_gradients_by_itself_is_not_warned_of(answers, average):
    (said, first), (others, second) = (answer[average.__name__] for answer in answers)
    assert said == others == []
    assert first == second  # so there was nothing to warn of


@pytest.mark.parametrize("way", ["alone", "forgotten", "beside DDP"])
def test_an_optimizer_that_nobody_distributed_is_named_once(answers, way):
    assert len(answers[0][way]) == 1
    assert answers[1][way] == []
    for part in ("[PD327]", "SGD with 4 parameters, the first of shape [7, 5]"):
        assert part in answers[0][way][0]


def test_rank_that_clipped_what_another_did_not_have_says_so(answers):
    assert "PD320" in answers[0]["late"]
    assert "some process had none" in answers[0]["late"]
