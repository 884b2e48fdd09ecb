"""Automatic loss scaling: a factor that follows half-precision gradients, and nothing else."""

import copy

import pytest
import torch
from torch import nn

import popdist_torch as poptorch


class Half(nn.Module):
    """A loss whose gradient for each weight is the input, whatever the weight."""

    def __init__(self, dtype=torch.float16, elements=4):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements, dtype=dtype))

    def forward(self, x):
        return poptorch.identity_loss((self.weight * x).sum(), reduction="none")


def wrapped(model, optimizer, automatic=True):
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(automatic)
    return poptorch.trainingModel(model, options, optimizer)


def test_the_scaling_doubles_until_gradients_are_large():
    model = Half()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0, loss_scaling=4.0)
    training = wrapped(model, optimizer)
    # A gradient of 1 is above the limit of 8188 from a scaling of 8192 on: then it is halved.
    factors = []
    for _ in range(14):
        training(torch.ones(4, dtype=torch.float16))
        factors.append(optimizer.loss_scale_update_factor)
    assert factors[:12] == [2.0**i for i in range(1, 12)] + [2.0**10]
    assert factors[12:] == [2.0**11, 2.0**10]
    # Powers of two leave the updates as they are without any scaling.
    assert model.weight.tolist() == [-14.0] * 4


@pytest.mark.parametrize("name", ["Adam", "AdamW", "LAMB", "RMSprop"])
def test_half_precision_weights_train_and_resume_with_single_precision_moments(name):
    # Gradients of 1e-7 times the loss scaling are half-precision numbers; their squares are not.
    data = torch.full((4,), 1e-7, dtype=torch.float16)

    def made():
        model = Half()
        optimizer = getattr(poptorch.optim, name)(model.parameters(), lr=0.5, loss_scaling=2.0**15)
        return model, optimizer, wrapped(model, optimizer, automatic=False)

    model, optimizer, training = made()
    training(data)
    saved = model.state_dict(), optimizer.state_dict()
    moments = [v for v in saved[1]["state"][0].values() if v.shape == (4,)]
    assert moments
    assert all(v.dtype == torch.float32 and v.all() for v in moments)
    training(data)
    twin, twins, second = made()
    second.load_state_dict(saved[0])
    twins.load_state_dict(saved[1])
    second(data)
    assert model.weight.dtype == torch.float16
    assert torch.isfinite(model.weight).all()
    assert model.weight.tolist() == twin.weight.tolist() != [0.0] * 4


def test_an_update_that_overflowed_is_left_out_and_the_scaling_halved():
    model = Half()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.5, loss_scaling=1024.0)
    training = wrapped(model, optimizer)
    training(torch.full((4,), 100.0, dtype=torch.float16))
    assert optimizer.loss_scale_update_factor == 0.5
    assert not model.weight.any()
    assert not optimizer.state_dict()["state"]
    training(torch.full((4,), 100.0, dtype=torch.float16))
    training.copyWeightsToHost()
    assert model.weight.all()
    assert optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"] == 0.25


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_train_as_without_it(dtype):
    torch.manual_seed(0)
    data = torch.randn(3, 4).to(dtype)
    weights = []
    for automatic in (True, False):
        model = Half(dtype)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, loss_scaling=8.0)
        training = wrapped(model, optimizer, automatic)
        for row in data:
            training(row)
        assert optimizer.loss_scale_update_factor == 1.0
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)


def test_a_checkpoint_keeps_the_factor(tmp_path):
    torch.manual_seed(0)
    data = torch.randn(6, 4).to(torch.float16)

    def run(rows, path, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        training = wrapped(model, optimizer)
        saved = poptorch.Checkpoint(path, model=training)
        saved.load()
        for row in rows:
            training(row)
        saved.save()
        training.destroy()
        return optimizer.loss_scale_update_factor

    straight, resumed = Half(), Half()
    at_once = run(data, tmp_path / "a", straight)
    assert at_once == 64.0
    run(data[:3], tmp_path / "b", resumed)
    again = copy.deepcopy(Half())
    assert run(data[3:], tmp_path / "b", again) == at_once
    assert torch.equal(again.weight, straight.weight)
