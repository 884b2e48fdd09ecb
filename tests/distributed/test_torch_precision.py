"""Mixed and half precision in wrapped models: two ranks, different data, against one process."""

import pytest
import torch
from torch import nn

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from tests.distributed.jobs import run_job

CALLS, ITERATIONS, MICRO_BATCH = 3, 2, 8
SCALING = 1024.0
AUTOCAST = ["inside", "around", "around, compiled"]
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# Sums of two single-precision gradients; a forward pass with old weights is off by 1e-1.
SINGLE = 1e-6


class Cast(nn.Linear):
    """What a layer is for data of lower precision than its weights."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Net(nn.Module):
    """Half of the model is kept out of autocast: its backward pass has to be as well."""

    def __init__(self, cast=False):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 8)
        self.cast = cast

    def forward(self, x, y):
        if not self.cast:
            return self.body(x, y)
        with torch.autocast("cpu", torch.bfloat16):
            return self.body(x, y)

    def body(self, x, y):
        hidden = torch.tanh(self.first(x))
        with torch.autocast("cpu", enabled=False):
            scores = self.last(hidden.to(self.last.weight.dtype))
        return scores, nn.functional.cross_entropy(scores, y)


def batches(call, dtype=torch.float32):
    """The global batch of a call: rows by iteration and rank."""
    generator = torch.Generator().manual_seed(call)
    shape = (ITERATIONS, 2, MICRO_BATCH)
    x = torch.randn(*shape, 64, generator=generator)
    return x.to(dtype), torch.randint(0, 8, shape, generator=generator)


def run(model, optimizer, *, around=False, compiled=False, dtype=torch.float32):
    import horovod.torch

    sent = []
    send = horovod.torch.grouped_allreduce_async_

    def sending(tensors, **kwargs):
        sent.append(max((tensor.numel(), str(tensor.dtype)) for tensor in tensors))
        return send(tensors, **kwargs)

    horovod.torch.grouped_allreduce_async_ = sending
    options = popdist.poptorch.Options().randomSeed(1).deviceIterations(ITERATIONS)
    if compiled:
        options.Jit.torchCompile(backend="aot_eager")
    training = poptorch.trainingModel(model, options, optimizer)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            for call in range(CALLS):
                x, y = (
                    p[:, popdist.getInstanceIndex()].flatten(0, 1) for p in batches(call, dtype)
                )
                _, loss = training(x, y)
    finally:
        horovod.torch.grouped_allreduce_async_ = send
    training.destroy()
    return {
        "weights": {name: p.tolist() for name, p in model.named_parameters()},
        "sent": max(sent)[1],
        "loss": loss.item(),
    }


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def adamw(model):
    return poptorch.optim.AdamW(model.parameters(), lr=0.01, loss_scaling=SCALING)


def job():
    popdist.init()
    answers = {}
    for how in AUTOCAST:
        model, around = Net(cast=how == "inside"), how != "inside"
        answers[how] = run(model, sgd(model), around=around, compiled="compiled" in how)
    for name, dtype in HALF.items():
        model = Net().to(dtype)
        answers[name] = run(model, adamw(model), dtype=dtype)
        answers[f"{name} data"] = run(model := Net(), sgd(model), dtype=dtype)
    return answers


@pytest.fixture(scope="module")
def answers():
    return run_job(job, instances=2)


def gradients(model, x, y, factor=1.0):
    """Gradients of both ranks' rows, in plain torch."""
    every = []
    for rank in range(2):
        model.zero_grad()
        (factor * model(x[rank], y[rank])[1]).backward()
        every.append([p.grad.clone() for p in model.parameters()])
    return every


def trained(model, dtype=torch.float32):
    """One process, with SGD."""
    optimizer = sgd(model)
    for call in range(CALLS):
        for x, y in zip(*batches(call, dtype), strict=True):
            for p, first, second in zip(model.parameters(), *gradients(model, x, y), strict=True):
                p.grad = (first + second) / 2
            optimizer.step()
    return model


@pytest.fixture(scope="module")
def cast_reference():
    """Autocast around each forward pass alone, as torch asks for."""
    return trained(Net(cast=True))


def half_reference(dtype):
    """One process: torch's AdamW on single-precision copies of the weights."""
    model = Net().to(dtype)
    copies = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(copies, lr=0.01)
    for call in range(CALLS):
        for x, y in zip(*batches(call, dtype), strict=True):
            every = zip(copies, *gradients(model, x, y, SCALING), strict=True)
            for copy, first, second in every:
                copy.grad = (first.float() / 2 + second.float() / 2).to(dtype).float() / SCALING
            optimizer.step()
            with torch.no_grad():
                for p, copy in zip(model.parameters(), copies, strict=True):
                    p.copy_(copy)
                    copy.copy_(p)
    return model


def require_equal(answers, name, model, atol):
    first, second = (answer[name] for answer in answers)
    assert first["weights"] == second["weights"]
    for path, expected in model.named_parameters():
        seen = torch.tensor(first["weights"][path])
        torch.testing.assert_close(seen, expected.detach().float(), rtol=0, atol=atol)


@pytest.mark.parametrize("how", AUTOCAST)
def test_autocast_inside_and_around_trains_with_the_newest_weights(answers, cast_reference, how):
    require_equal(answers, how, cast_reference, SINGLE)
    assert answers[0][how]["sent"] == "torch.float32"


@pytest.mark.parametrize("name", HALF)
def test_half_precision_weights_train_as_with_single_precision_moments(answers, name):
    reference = half_reference(HALF[name])
    # Weights are below 1/4 in size: one unit in the last place of such a weight.
    require_equal(answers, name, reference, torch.finfo(HALF[name]).eps / 4)
    # Horovod adds up float16, and has no bfloat16.
    sent = "torch.float16" if name == "float16" else "torch.float32"
    assert {answer[name]["sent"] for answer in answers} == {sent}


@pytest.mark.parametrize("name", HALF)
def test_single_precision_weights_are_masters_for_data_of_half_precision(answers, name):
    reference = Net()
    reference.first = Cast(64, 64)
    reference.first.load_state_dict(Net().first.state_dict())
    require_equal(answers, f"{name} data", trained(reference, HALF[name]), SINGLE)
    assert {answer[f"{name} data"]["sent"] for answer in answers} == {"torch.float32"}
