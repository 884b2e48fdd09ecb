"""What is written is what trains: plain loops that change weights and optimizers.

Each program runs unchanged in one process of plain torch on the global batch, and on two real ranks
with other rows on each. The weights have to be the same.
"""

import copy

import pytest
import torch
from torch import nn

from tests.distributed.jobs import run_job
from tests.distributed.torch_loops import RANKS, STEPS, Net, Programs, loss_of, sgd, step_once
from tests.distributed.torch_modes import MODES

PROGRAMS = program = Programs()
PROGRAMS.update(MODES)


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


@program
def tied_in_mid_training(world):
    model = Net()
    model.other = nn.Linear(5, 7, bias=False, dtype=torch.float64)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if step == 2:
            model.other.weight = model.first.weight
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = torch.tanh(model.first(x) + model.other(x))
        nn.functional.cross_entropy(model.last(hidden), y).backward()
        optimizer.step()
    return model


@program
def parameters_put_into_a_group(world):
    """Past ``add_param_group``, into the list itself."""
    model = Net()
    optimizer = world.optimizer(torch.optim.SGD(model.first.parameters(), lr=0.2), model)
    for step in range(STEPS):
        if step == 1:
            optimizer.param_groups[0]["params"].extend(model.last.parameters())
        model.zero_grad()
        loss_of(model, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.first.parameters(), 0.05)
        optimizer.step()
    return model


@program
def layer_replaced(world):
    model = Net()
    optimizer = world.optimizer(torch.optim.SGD(model.parameters(), lr=0.2), model)
    for step in range(STEPS):
        if step == 1:
            torch.manual_seed(7)
            model.last = nn.Linear(7, 3, dtype=torch.float64)
            optimizer.param_groups[0]["params"] = list(model.parameters())
        step_once(model, optimizer, world.rows(step))
    return model


@program
def precision_changed(world):
    model = Net(torch.float32)
    optimizer = world.optimizer(torch.optim.SGD(model.parameters(), lr=0.2), model)
    for step in range(STEPS):
        if step == 1:
            model.double()
        x, y = world.rows(step)
        step_once(model, optimizer, (x.to(model.first.weight.dtype), y))
    return model


@program
def memory_of_weights_replaced(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if step == 2:
            for parameter in model.parameters():
                parameter.data = parameter.data * 0.5
        step_once(model, optimizer, world.rows(step))
    return model


@program
def copied_with_the_optimizer(world):
    """Training continues with copies, which exchange too."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if step == 2:
            model, optimizer = copy.deepcopy((model, optimizer))
        step_once(model, optimizer, world.rows(step))
    return model


@program
def optimizer_renewed(world):
    """A new optimizer for each step, over the same parameters."""
    model = Net()
    for step in range(STEPS):
        made = torch.optim.SGD(model.parameters(), lr=0.1 / (step + 1))
        step_once(model, world.optimizer(made, model), world.rows(step))
    return model


@program
def reparametrized(world):
    model = Net()
    nn.utils.parametrizations.weight_norm(model.first)
    nn.utils.parametrizations.orthogonal(model.last)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        step_once(model, optimizer, world.rows(step))
    return model


@program
def trained_copy_is_taken_over(world):
    """As in meta learning: the difference to a copy that was trained alone is the gradient."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        twin = copy.deepcopy(model)
        step_once(twin, torch.optim.SGD(twin.parameters(), lr=0.1), world.rows(step))
        for parameter, trained in zip(model.parameters(), twin.parameters(), strict=True):
            parameter.grad = parameter.detach() - trained.detach()
        optimizer.step()
    return model


def shares(world, step):
    """Each rank's rows with its index; one process has the rows of all ranks."""
    x, y = world.rows(step)
    if world.ranks > 1:
        return [(world.rank, (x, y))]
    return list(enumerate(zip(x.chunk(RANKS), y.chunk(RANKS), strict=True)))


class Tasks(nn.ModuleList):
    """A trunk and two heads, each with an optimizer of its own."""

    def __init__(self, world):
        super().__init__([Net(), nn.Linear(3, 3).double(), nn.Linear(3, 3).double()])
        self.optimizers = [world.optimizer(sgd(part), part) for part in self]

    def loss(self, task, rows):
        return loss_of(nn.Sequential(self[0], self[1 + task]), rows)


@program
def a_task_for_each_rank(world):
    """From the first pass on, each rank reaches another head's optimizer."""
    model = Tasks(world)
    for step in range(STEPS):
        model.zero_grad()
        parts = shares(world, step)
        (sum(model.loss(rank, rows) for rank, rows in parts) / len(parts)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        for optimizer in model.optimizers:
            optimizer.step()
    return model


@program
def tasks_of_single_steps_and_ranks(world):
    """Which rank has which task differs from step to step; one optimizer updates in each second."""
    model = Tasks(world)
    for step in range(2 * STEPS):
        parts = shares(world, step)
        losses = [
            model.loss(task, rows)
            for rank, rows in parts
            for task in range(2)
            if (step + rank) % 3 == task
        ]
        if losses:
            (sum(losses) / len(parts)).backward()
        for period, optimizer in zip((1, 1, 2), model.optimizers, strict=True):
            if step % period == period - 1:
                optimizer.step()
                optimizer.zero_grad()
    return model


@program
def losses_in_another_order_on_each_rank(world):
    model = Tasks(world)
    for step in range(STEPS):
        model.zero_grad()
        parts = shares(world, step)
        for index in range(2):
            tasks = [(index ^ rank, rows) for rank, rows in parts]
            (sum(model.loss(task, rows) for task, rows in tasks) / len(parts)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        for optimizer in model.optimizers:
            optimizer.step()
    return model


@program
def heads_that_are_added_and_reached_on_one_rank(world):
    """The second optimizer is created in mid-training; LBFGS runs its closure several times."""
    model = nn.ModuleList([Net()])
    optimizers = [world.optimizer(sgd(model), model)]
    for step in range(STEPS):
        if step % 2 == 0:
            model.append(nn.Linear(3, 3).double())
            nn.init.eye_(model[-1].weight)
            made = torch.optim.LBFGS(model[-1].parameters(), lr=0.1, max_iter=3)
            optimizers.append(world.optimizer(made if step else sgd(model[-1]), model[-1]))

        def closure(step=step):
            model.zero_grad()
            parts = shares(world, step)
            loss = sum(loss_of(nn.Sequential(*model[: 1 + 2 * r]), rows) for r, rows in parts)
            loss = loss / len(parts)
            loss.backward()
            return loss

        for optimizer in optimizers:
            optimizer.step(closure)
    return model


@program
def a_judge_that_one_rank_leaves_out(world):
    """The judge is too good for one rank, whose generator has no loss in this step."""
    model, judge = Net(), nn.Linear(3, 1).double()
    ours, theirs = world.optimizer(sgd(model), model), world.optimizer(sgd(judge), judge)
    for step in range(STEPS):
        parts = shares(world, step)
        judge.zero_grad()
        (sum(judge(model(x).detach()).tanh().mean() for _, (x, _) in parts) / len(parts)).backward()
        theirs.step()
        model.zero_grad()
        kept = [judge(model(x)).square().mean() for rank, (x, _) in parts if step % 2 != rank]
        if kept:
            (sum(kept) / len(parts)).backward()
        ours.step()
    return nn.ModuleList([model, judge])


@program
def every_optimizer_of_torch(world):
    """With its defaults, but for those of LBFGS, which diverges."""
    kinds = {name: getattr(torch.optim, name) for name in torch.optim.__all__}
    left_out = (torch.optim.Optimizer, torch.optim.SparseAdam)
    trained = nn.ModuleDict()
    for name, kind in kinds.items():
        if not isinstance(kind, type) or kind in left_out:
            continue
        model = trained[name] = Net()
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        parameters = matrices if name == "Muon" else model.parameters()
        optimizer = kind(parameters, **({"lr": 0.05, "max_iter": 4} if name == "LBFGS" else {}))
        optimizer = world.optimizer(optimizer, model)
        for step in range(STEPS):

            def closure(step=step, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = loss_of(model, world.rows(step))
                loss.backward()
                return loss

            optimizer.step(closure)
    return trained


@program
def hooks_of_modules(world):
    """Each layer's hooks change what flows back, and gradients are set to zero in place."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    model.first.register_full_backward_hook(lambda _, inputs, __: tuple(0.5 * g for g in inputs))
    model.last.register_full_backward_pre_hook(lambda _, outputs: tuple(2 * g for g in outputs))
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        x, y = world.rows(step)
        losses = [loss_of(model, (x.requires_grad_(), y)), model(x).square().mean()]
        torch.autograd.backward(losses)
        optimizer.step()
    return model


@program
def passes_for_parts_of_the_parameters(world):
    """One graph, two passes, each for some parameters; and an update that no optimizer makes."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, world.rows(step))
        loss.backward(inputs=list(model.last.parameters()), retain_graph=True)
        loss.backward(inputs=list(model.first.parameters()))
        with torch.no_grad():
            torch._foreach_sub_(
                list(model.parameters()), [0.1 * p.grad for p in model.parameters()]
            )
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def answers():
    return run_job(run_all, instances=RANKS)


def run_all():
    return PROGRAMS.run()


TOLERANCES = {"precision_changed": 1e-7, "every_optimizer_of_torch": 1e-11}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_trains_as_one_process_on_the_global_batch(answers, name):
    PROGRAMS.compare(answers, name, TOLERANCES.get(name, 1e-12))
