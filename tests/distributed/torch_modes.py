"""Plain loops with inference mode between steps, and with hooks of optimizers.

What such a program sees is recorded beside its weights, and compared with them.
"""

import copy

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import popdist_torch.horovod as hvd
from tests.distributed.torch_loops import STEPS, Net, Programs, loss_of, sgd, step_once

MODES = program = Programs()


def recorded(model, values):
    model.seen = nn.Parameter(torch.tensor(values, dtype=torch.float64), requires_grad=False)
    return model


@program
def collectives_before_the_first_step_in_inference_mode(world):
    """Their memory is used by training later."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    with torch.inference_mode():
        scores = model(world.rows(1)[0])
        if world.ranks > 1:
            _, doubled = hvd.grouped_allgather([scores, scores * 2])
            summed = hvd.reducescatter(scores, op=hvd.Sum)
            sent, _ = hvd.alltoall(scores, splits=torch.tensor([1, 3], dtype=torch.int32))
            parts = torch.stack([sent.sum(), hvd.alltoall(scores).sum(), summed.square().sum()])
            told = hvd.broadcast(scores, 1).sum()
            hvd.broadcast_parameters(model)
            seen = [doubled.sum(), *hvd.allreduce(parts, op=hvd.Sum), told]
        else:
            total, squares = scores.sum(), sum(scores.chunk(2)).square().sum()
            seen = [total * 2, total, total, squares, scores.chunk(2)[1].sum()]
    for step in range(STEPS):
        step_once(model, optimizer, world.rows(step))
    return recorded(model, [*map(float, seen)])


@program
def validated_in_inference_mode(world):
    model, seen = Net(), []
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        step_once(model, optimizer, world.rows(step))
        with torch.inference_mode():
            loss = loss_of(model, world.rows(50 + step))
            if world.ranks > 1:
                seen += [hvd.average_metrics({"loss": float(loss)})["loss"]]
                seen += [float(hvd.allreduce(loss)), float(hvd.allreduce_(loss * 1))]
            else:
                seen += [float(loss)] * 3
    return recorded(model, seen)


@program
def targets_and_averages_of_inference_mode(world):
    """A teacher follows the weights, and its outputs are targets."""
    model, teacher = Net(), Net().requires_grad_(requires_grad=False)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        x, _ = world.rows(step)
        with torch.inference_mode():
            target = teacher(x).softmax(1)
        step_once(model, optimizer, (x, target.clone()))
        with torch.inference_mode():
            for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.3)
    return nn.ModuleList([model, teacher])


@program
def stepped_in_inference_mode(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        with torch.inference_mode():
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            for parameter in model.parameters():
                parameter.mul_(0.99)
    return model


def hooked(world, *, first):
    """Hooks of an optimizer run once each, and see what all processes have."""
    model, seen = Net(), []
    optimizer = sgd(model)

    def clip(*_):
        seen.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))

    def note(*_):
        seen.append(float(sum(parameter.grad.abs().sum() for parameter in model.parameters())))

    def register():
        optimizer.register_step_pre_hook(clip)
        optimizer.register_step_post_hook(note)
        optimizer.register_state_dict_pre_hook(lambda *_: seen.append(100.0))
        optimizer.register_state_dict_post_hook(lambda *_: seen.append(200.0))
        optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append(300.0))
        optimizer.register_load_state_dict_post_hook(lambda *_: seen.append(400.0))

    if first:
        register()
    optimizer = world.optimizer(optimizer, model)
    if not first:
        register()
    for step in range(STEPS):
        step_once(model, optimizer, world.rows(step))
        if step == 1:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return recorded(model, seen)


MODES["hooks of an optimizer before it is distributed"] = lambda world: hooked(world, first=True)
MODES["hooks of an optimizer after it is distributed"] = lambda world: hooked(world, first=False)


@program
def hooks_of_all_optimizers(world):
    model, seen = Net(), []

    def clip(optimizer, *_):
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 0.05)

    handles = [
        register_optimizer_step_pre_hook(clip),
        register_optimizer_step_post_hook(lambda *_: seen.append(float(model.last.bias.grad[0]))),
    ]
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        step_once(model, optimizer, world.rows(step))
    for handle in handles:
        handle.remove()
    return recorded(model, seen)
