"""Local replicas that meet in the middle of a model, and what belongs to each of them."""

import gc
import weakref

import pytest
import torch
from torch import nn

import popdist_torch as poptorch

REPLICAS = 3


def total(value):
    return poptorch.custom_op([value], "ReplicatedAllReduce", "ai.graphcore", 1, [value])[0]


def trained(model, updates, *, options=None, **settings):
    options = poptorch.Options() if options is None else options
    options.replicationFactor(REPLICAS).outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer=optimizer, **settings)
    if hasattr(model, "weight"):
        training.weight.replicaGrouping(
            poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
        )
    for x in updates:
        training(x)
    return model


class Normalized(nn.Module):
    """A weight, batch statistics and two exchanges of each replica."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(REPLICAS, 2) / 5 + 0.5)
        self.norm = nn.BatchNorm1d(2, affine=False)
        self.shared = nn.Parameter(torch.tensor([0.5, -2.0]))

    def forward(self, x):
        value = torch.tanh(self.norm(x) * self.weight * self.shared)
        both = total(value) * value
        return poptorch.identity_loss((total(both * self.weight) ** 2).mean(), "none")


@pytest.mark.parametrize("ordered", [False, True], ids=["sums", "ordered sums"])
def test_weights_and_buffers_of_each_replica_are_its_own(ordered):
    torch.manual_seed(5)
    updates = torch.randn(3, REPLICAS * 2 * 4, 2).double()
    model = Normalized().double()
    weights = model.weight.detach().clone().requires_grad_()
    shared = model.shared.detach().clone().requires_grad_()
    norms = [nn.BatchNorm1d(2, affine=False).double() for _ in range(REPLICAS)]
    for update in updates:
        losses = []
        for rows in update.view(2, REPLICAS, 4, 2):
            values = [
                torch.tanh(norm(part) * weight * shared)
                for norm, part, weight in zip(norms, rows, weights, strict=True)
            ]
            both = [sum(values) * value for value in values]
            again = sum(one * weight for one, weight in zip(both, weights, strict=True))
            losses += [(again**2).mean()] * REPLICAS
        slopes = torch.autograd.grad(sum(losses) / len(losses), [weights, shared])
        with torch.no_grad():
            for weight, slope in zip((weights, shared), slopes, strict=True):
                weight.sub_(0.1 * slope)
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    trained(model, updates, options=options, placement_invariant=ordered)
    torch.testing.assert_close(model.weight.detach(), weights.detach())
    torch.testing.assert_close(model.shared.detach(), shared.detach())
    torch.testing.assert_close(model.norm.running_mean, norms[0].running_mean)


class Drawn(nn.Module):
    def __init__(self, *, meets):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.meets = meets

    def forward(self, x):
        first = torch.rand_like(x)
        value = total(x * self.scale) * 0 if self.meets else x * self.scale * 0
        return first, torch.rand_like(x), poptorch.identity_loss(value.sum(), "none")


def test_random_numbers_are_those_of_replicas_that_do_not_meet():
    drawn = []
    for meets in (False, True):
        options = poptorch.Options().randomSeed(7).replicationFactor(REPLICAS)
        model = Drawn(meets=meets)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        training = poptorch.trainingModel(model, options, optimizer=optimizer)
        drawn.append([training(torch.ones(REPLICAS, 4)) for _ in range(2)])
    for alone, together in zip(*drawn, strict=True):
        assert torch.equal(alone[0], together[0])
        assert torch.equal(alone[1], together[1])


class Layer(nn.Module):
    """What replicas do, by the sign of their first value."""

    def __init__(self, *, way):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.relu = nn.ReLU(inplace=way == "in place")
        self.way = way

    def forward(self, x):
        value = self.relu(self.layer(x))
        is_odd = x.flatten()[0] < 0
        if self.way == "fails" and is_odd:
            raise LookupError("of this replica")
        if self.way != "fails alone" or not is_odd:
            value = total(value)
        return poptorch.identity_loss(value.sum(), "none")


@pytest.mark.parametrize("odd", range(REPLICAS))
def test_the_error_of_a_replica_is_that_of_the_call(odd):
    x = torch.ones(REPLICAS, 1)
    x[odd] = -1
    with pytest.raises(LookupError, match="of this replica"):
        trained(Layer(way="fails"), [x])
    with pytest.raises(poptorch.Error, match="PD365"):
        trained(Layer(way="fails alone"), [x])


def test_modules_in_place_meet_as_others_do():
    weights = []
    for way in ("meets", "in place"):
        torch.manual_seed(2)
        model = Layer(way=way)
        trained(model, torch.rand(4, REPLICAS * 2, 1))
        weights.append(model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value)


def test_compiled_models_meet_as_others_do():
    torch.manual_seed(2)
    updates = torch.rand(4, REPLICAS * 2, 1)
    plain = Layer(way="meets")
    compiled = Layer(way="meets")
    compiled.load_state_dict(plain.state_dict())
    trained(plain, updates)
    trained(torch.compile(compiled, backend="aot_eager"), updates)
    torch.testing.assert_close(compiled.layer.weight, plain.layer.weight)
    torch.testing.assert_close(compiled.layer.bias, plain.layer.bias)


def test_autocast_reaches_all_replicas():
    class Casting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            value = self.layer(x)
            return total(value), poptorch.identity_loss(value.sum(), "none")

    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = Casting()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        options = poptorch.Options().replicationFactor(REPLICAS)
        training = poptorch.trainingModel(model, options, optimizer=optimizer)
        found, _ = training(torch.ones(REPLICAS, 4))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found[0], found[-1])


def test_nothing_of_a_call_is_kept():
    """A batch, the exchanged values and an error are freed when the call has ended."""
    seen = []

    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x):
            value = total(self.layer(x))
            seen.append(weakref.ref(value))
            if x[0] > 1:
                raise LookupError("of the last batch")
            return poptorch.identity_loss(value.sum(), "none")

    model = Remembering()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    options = poptorch.Options().replicationFactor(REPLICAS)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    training(torch.ones(REPLICAS, 1))
    with pytest.raises(LookupError):
        training(2 * torch.ones(REPLICAS, 1))
    gc.collect()
    assert len(seen) == REPLICAS + 1
    assert not [value for value in seen if value() is not None]
