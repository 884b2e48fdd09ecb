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

PROGRAMS = program = Programs()


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


@pytest.fixture(scope="module")
def answers():
    return run_job(run_all, instances=RANKS)


def run_all():
    return PROGRAMS.run()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_trains_as_one_process_on_the_global_batch(answers, name):
    PROGRAMS.compare(answers, name, {"precision_changed": 1e-7}.get(name, 1e-12))
