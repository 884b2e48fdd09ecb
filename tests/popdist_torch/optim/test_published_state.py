"""Optimizer states under PopART's names: what is written, and files of an IPU that are loaded."""

import copy
import logging

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist_torch.errors import OptimizerError

ADAM = {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step"}
CASES = {
    "Adam": ({"lr": 0.1}, ADAM, 1),
    "AdamW": ({"lr": 0.1, "weight_decay": 0.1}, ADAM, 1),
    "RMSprop": ({"lr": 0.1}, {"square_avg": "Accl1"}, 1),
    "RMSprop centered": (
        {"lr": 0.1, "centered": True, "momentum": 0.5},
        {"square_avg": "Accl1", "grad_avg": "Accl2", "momentum_buffer": "Accl3"},
        1,
    ),
    # The velocity of separate accumulators is that of the scaled loss.
    "SGD": ({"lr": 0.1, "momentum": 0.9}, {"momentum_buffer": "Accl1"}, 8),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.last(torch.tanh(self.first(x))), y)


def batches(count):
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(6, 3, generator=generator), torch.randn(6, 2, generator=generator))
        for _ in range(count)
    ]


def steps(net, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        net(x, y).backward()
        optimizer.step()


def trained_on_an_ipu(case):
    """A net and its optimizer of torch after five updates, and the file that an IPU would write."""
    settings, names, factor = CASES[case]
    net = Net()
    optimizer = getattr(torch.optim, case.split()[0])(net.parameters(), **settings)
    steps(net, optimizer, batches(5))
    state = {
        f"{prefix}___{name}": optimizer.state[parameter][key] * factor
        for name, parameter in net.named_parameters()
        for key, prefix in names.items()
    }
    groups = optimizer.state_dict()["param_groups"]
    return net, optimizer, {"state": {}, "param_groups": groups, "ipu_state": state}


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_training_continues_from_the_file_of_an_ipu(case, is_compiled):
    plain, reference, saved = trained_on_an_ipu(case)
    net = copy.deepcopy(plain)
    kind = getattr(poptorch.optim, case.split()[0])
    optimizer = kind(net.parameters(), **CASES[case][0], loss_scaling=8.0)
    training = poptorch.trainingModel(net, optimizer=optimizer)
    rest = batches(9)[5:]
    if is_compiled:
        training.compile(*rest[0])
    optimizer.load_state_dict(copy.deepcopy(saved))
    for x, y in rest:
        training(x, y)
    steps(plain, reference, rest)
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    written = optimizer.state_dict()["ipu_state"]
    for name, parameter in plain.named_parameters():
        for key, prefix in CASES[case][1].items():
            expected = reference.state[parameter][key] * CASES[case][2]
            torch.testing.assert_close(written[f"{prefix}___{name}"], expected)


def test_names_and_first_values_are_known_once_the_model_is_compiled():
    net = Net()
    optimizer = poptorch.optim.RMSprop(net.parameters(), lr=0.5, use_tf_variant=True)
    training = poptorch.trainingModel(net, optimizer=optimizer)
    assert optimizer.state_dict()["ipu_state"] is None
    training.compile(*batches(1)[0])
    state = optimizer.state_dict()
    assert torch.equal(state["ipu_state"]["Accl1___last.weight"], torch.ones(2, 4))
    assert state["ipu_param"]["learningRate___specific___first.bias"] == 0.5
    assert state["state"] == {}


def test_a_file_has_each_moment_once():
    net = Net()
    optimizer = poptorch.optim.Adam(net.parameters(), lr=0.1)
    training = poptorch.trainingModel(net, optimizer=optimizer)
    training(*batches(1)[0])
    state = optimizer.state_dict()
    kept = {value.data_ptr() for values in state["state"].values() for value in values.values()}
    assert {value.data_ptr() for value in state["ipu_state"].values()} == kept
    before = {name: value.clone() for name, value in state["ipu_state"].items()}
    training(*batches(1)[0])
    assert all(torch.equal(state["ipu_state"][name], before[name]) for name in before)


def test_tensors_that_do_not_fit_are_named(caplog):
    _, _, saved = trained_on_an_ipu("Adam")
    saved["ipu_state"]["Accl1___other"] = torch.zeros(3)
    saved["ipu_state"]["Accum___first.bias"] = torch.zeros(4)
    saved["ipu_state"]["lossScaleUpdateFactor"] = torch.tensor(4.0)
    net = Net()
    optimizer = poptorch.optim.Adam(net.parameters())
    poptorch.trainingModel(net, optimizer=optimizer).compile(*batches(1)[0])
    with caplog.at_level(logging.WARNING):
        optimizer.load_state_dict(saved)
    assert "1 tensors" in caplog.text
    assert "Accl1___other" in caplog.text
    assert optimizer.loss_scale_update_factor == 4
    saved["ipu_state"]["Accl2___first.bias"] = torch.zeros(5)
    with pytest.raises(OptimizerError, match=r"PD306.*Accl2___first\.bias"):
        optimizer.load_state_dict(saved)
