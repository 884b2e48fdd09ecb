"""Marked layers keep no activations, and train exactly as before."""

import copy

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from tests.popdist_torch import reference

X, Y = torch.randn(8, 5), torch.randn(8, 5)


class Layer(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 5))

    def forward(self, x):
        type(self).calls += 1
        return self.inner(x)


class Net(nn.Module):
    def __init__(self, mark, layer=Layer):
        super().__init__()
        self.mark = mark
        self.layers = nn.ModuleList([layer() for _ in range(3)])
        if mark == "hook":
            for part in self.layers:
                part.register_forward_hook(lambda *a: poptorch.recomputationCheckpoint(a[2]))

    def forward(self, x, y):
        for part in self.layers:
            x = part(x)
            if self.mark == "call":
                x = poptorch.recomputationCheckpoint(x)
        return nn.functional.mse_loss(x, y)


def train(model, calls=3):
    """Weights, bytes that are kept for backward passes, and forward passes of layers."""
    kept = []

    def pack(tensor):
        kept[-1] += tensor.nbytes
        return tensor

    options = poptorch.Options().randomSeed(3)
    training = poptorch.trainingModel(model, options, torch.optim.Adam(model.parameters()))
    Layer.calls = 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for _ in range(calls):
            kept.append(0)
            training(X, Y)
    return reference.flat(model), kept, Layer.calls


@pytest.mark.parametrize("mark", ["call", "hook"])
def test_marked_layers_recompute_and_train_the_same(mark):
    torch.manual_seed(1)
    marked = Net(mark)
    plain = Net(None)
    plain.load_state_dict(marked.state_dict())
    weights, kept, forwards = train(marked)
    expected, all_kept, once = train(plain)
    assert (weights == expected).all()
    assert once == 3 * 3
    assert forwards == 3 + 2 * 3 * 2  # from the second micro-batch on, twice
    assert kept[0] == all_kept[0]
    assert kept[1] < all_kept[1] / 4


def test_layers_that_change_buffers_are_left_alone():
    class WithNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))

        def forward(self, x):
            return self.inner(x)

    torch.manual_seed(1)
    marked, plain = Net("call", WithNorm), Net(None, WithNorm)
    plain.load_state_dict(marked.state_dict())
    assert (train(marked)[0] == train(plain)[0]).all()
    counts = [b for name, b in marked.named_buffers() if name.endswith("tracked")]
    assert [int(count) for count in counts] == [3, 3, 3]


def test_outside_a_wrapped_model_it_gives_back_what_it_got():
    tensor = torch.ones(1)
    assert poptorch.recomputationCheckpoint(tensor) is tensor
    assert poptorch.recomputationCheckpoint(tensor, tensor) == (tensor, tensor)
    nested = {"a": [tensor]}
    assert poptorch.recomputationCheckpoint(nested) is nested
    model = Net("call").eval()
    twin = copy.deepcopy(model)
    twin.mark = None
    assert torch.equal(model(X, Y), twin(X, Y))


def test_layers_of_another_precision_run_again_as_they_ran():
    """Half-precision rows in single-precision layers, as PopTorch's programs have them."""

    class Widened(nn.Module):
        def __init__(self, marked):
            super().__init__()
            torch.manual_seed(1)
            self.layer, self.last, self.marked = nn.Linear(5, 4), nn.Linear(4, 1), marked

        def forward(self, x):
            hidden = self.layer(x)
            if self.marked:
                hidden = poptorch.recomputationCheckpoint(hidden)
            return poptorch.identity_loss(self.last(torch.tanh(hidden)).square(), reduction="sum")

    trained = []
    for marked in (False, True):
        model = Widened(marked)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        training = poptorch.trainingModel(model, optimizer=optimizer)
        for _ in range(3):
            training(X.half())
        trained.append(reference.flat(model))
    assert (trained[0] == trained[1]).all()
