"""Updates by hand that exchange nothing are named, and backward passes for other ends are not."""

import logging
from threading import Thread

import pytest
import torch
from torch import nn
from torch.func import functional_call

import popdist_onnx
import popdist_torch
from popdist_torch import unexchanged
from popdist_torch.unexchanged import BY_HAND

PASSES = 5


def batches():
    generator = torch.Generator().manual_seed(3)
    for _ in range(PASSES):
        yield torch.randn(6, 4, generator=generator), torch.randn(6, 1, generator=generator)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def in_place():
    model = network()
    for x, y in batches():
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(0.1 * weight.grad)


def through_data():
    model = network()
    for x, y in batches():
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for weight in model.parameters():
            weight.data = weight.data - 0.1 * weight.grad


def accumulated():
    model = network()
    for number, (x, y) in enumerate(batches()):
        nn.functional.mse_loss(model(x), y).backward()
        if number % 2:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.sub_(0.1 * weight.grad)
                    weight.grad = None


def by_autograd_grad():
    model = network()
    weights = list(model.parameters())
    for x, y in batches():
        gradients = torch.autograd.grad(nn.functional.mse_loss(model(x), y), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(0.1 * gradient)


def by_torch_func():
    model = network()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    for x, y in batches():

        def loss(values, x=x, y=y):
            return nn.functional.mse_loss(functional_call(model, values, (x,)), y)

        gradients = torch.func.grad(loss)(weights)
        weights = {name: weights[name] - 0.1 * gradients[name] for name in weights}


def by_new_tensors():
    model = network()
    weights = {name: w.detach().requires_grad_() for name, w in model.named_parameters()}
    for x, y in batches():
        loss = nn.functional.mse_loss(functional_call(model, weights, (x,)), y)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        weights = {
            name: (weight - 0.1 * gradient).detach().requires_grad_()
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }


def as_in_a_tutorial():
    slope = torch.ones((), requires_grad=True)
    for x, y in batches():
        (slope * x.sum(1, keepdim=True) - y).square().sum().backward()
        with torch.no_grad():
            slope -= 1e-3 * slope.grad
            slope.grad = None


class Own:
    """An optimizer that does not derive from torch's."""

    def __init__(self, weights):
        self.weights = list(weights)

    def step(self):
        with torch.no_grad():
            for weight in self.weights:
                weight.sub_(0.1 * weight.grad)


def by_an_optimizer_of_its_own():
    model = network()
    optimizer = Own(model.parameters())
    for x, y in batches():
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def gradients_only():
    model = network()
    for x, y in batches():
        nn.functional.mse_loss(model(x), y).backward()


def of_inputs():
    model = network()
    for x, y in batches():
        x.requires_grad_()
        nn.functional.mse_loss(model(x), y).backward()
        torch.autograd.grad(model(x).sum(), x)


def of_an_optimizer():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    BY_HAND.leave_out(model.parameters())  # as before its first step
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def of_an_export():
    popdist_onnx.from_torch(network(), next(batches())[:1])  # compares gradients at several points


def in_a_thread():
    with popdist_torch.local_training():
        thread = Thread(target=in_place)
        thread.start()
        thread.join()


@pytest.fixture
def said(caplog):
    run = torch.autograd._engine_run_backward
    BY_HAND.start()
    with caplog.at_level(logging.WARNING, logger="popdist.torch"):
        yield caplog
    BY_HAND._stop()
    assert torch.autograd._engine_run_backward is run


TRAINS = (
    in_place,
    through_data,
    accumulated,
    by_autograd_grad,
    by_torch_func,
    by_new_tensors,
    as_in_a_tutorial,
    by_an_optimizer_of_its_own,
)


@pytest.mark.parametrize("program", TRAINS, ids=lambda program: program.__name__)
def test_an_update_by_hand_is_named_once(said, program):
    program()
    [warning] = [record.getMessage() for record in said.records]
    assert "[PD333]" in warning


@pytest.mark.parametrize(
    "program",
    [gradients_only, of_inputs, of_an_optimizer, of_an_export, in_a_thread],
    ids=lambda program: program.__name__,
)
def test_backward_passes_for_other_ends_are_not_named(said, program):
    program()
    assert not said.records


@pytest.fixture
def torchs_group(tmp_path):
    distributed = torch.distributed
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("use_orig_params", [False, True])
@pytest.mark.usefixtures("torchs_group")
def test_fsdp_exchanges_gradients(use_orig_params, caplog):
    from torch.distributed.fsdp import FullyShardedDataParallel

    device = torch.device("cpu")
    model = FullyShardedDataParallel(network(), device_id=device, use_orig_params=use_orig_params)
    alone = network()
    for trained, count in ((model, 0), (alone, 1)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        x, y = next(batches())
        nn.functional.mse_loss(trained(x), y).backward()
        unexchanged._say_if_alone(optimizer, (optimizer,), {})
        assert caplog.text.count("PD327") == count


def test_a_step_with_gradients_of_zero_is_none_and_the_next_one_is_looked_at(caplog):
    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for parameter in alone.parameters():  # as Horovod does to have a state that it can broadcast
        parameter.grad = torch.zeros_like(parameter)
    unexchanged._say_if_alone(optimizer, (optimizer,), {})
    assert not caplog.text
    x, y = next(batches())
    nn.functional.mse_loss(alone(x), y).backward()
    unexchanged._say_if_alone(optimizer, (optimizer,), {})
    assert caplog.text.count("PD327") == 1
