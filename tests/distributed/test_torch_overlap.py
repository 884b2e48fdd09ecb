"""The exchange begins while the last backward pass is still running, and not before that pass."""

import torch
from torch import nn

import popdist
import popdist.poptorch
import popdist_torch as poptorch
import popdist_torch.horovod as hvd
from tests.distributed.jobs import run_job

WIDTH = 1100  # a layer's weights are larger than a slice of the exchange


class Deep(nn.Module):
    def __init__(self, events):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.events = events

    def forward(self, x, y):
        hidden = self.layers[0](x)
        hidden.register_hook(lambda _: self.events.append("first layer"))
        return nn.functional.mse_loss(self.layers[2](self.layers[1](hidden)), y)

    def __deepcopy__(self, memo):
        copied = Deep(self.events)
        copied.load_state_dict(self.state_dict())
        return memo.setdefault(id(self), copied)


def record():
    popdist.init()
    import horovod.torch

    events = []
    send = horovod.torch.grouped_allreduce_async_

    def sending(tensor, *, name, **kwargs):
        if "popdist calls" not in name:  # those say what an instance does, and have no gradients
            events.append("sent")
        return send(tensor, name=name, **kwargs)

    horovod.torch.grouped_allreduce_async_ = sending
    data = torch.ones(4, WIDTH)
    options = popdist.poptorch.Options().randomSeed(1)
    options.Training.gradientAccumulation(2)
    model = Deep(events)
    training = poptorch.trainingModel(model, options)
    training(data, data)
    wrapped = list(events)
    training.destroy()
    events.clear()

    hvd.init()
    torch.manual_seed(1)
    net = Deep(events)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    for _ in range(2):
        events.clear()  # the first step's gradients leave after its check, at its end
        optimizer.zero_grad()
        for _ in range(2):
            net(data, data).backward()
        optimizer.step()
    return {"wrapped": wrapped, "plain": events}


def test_slices_leave_during_the_last_backward_pass():
    # The measurement of the loss's parts has backward passes of its own.
    for answer in run_job(record, env={"POPDIST_SKIP_CHECKS": "parts"}):
        for events in answer.values():
            assert events[0] == "first layer"  # nothing leaves in the pass that is not the last
            during = events[1 : events.index("first layer", 1)]
            assert during.count("sent") >= 2  # the last two layers' slices, before the first layer
            assert events[-1] == "sent"
