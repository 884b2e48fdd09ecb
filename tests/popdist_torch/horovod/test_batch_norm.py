"""Batch normalization over all processes: what a process alone sees of it."""

import copy

import pytest
import torch
from torch import nn

import popdist_torch
from popdist_torch.errors import Error

X = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(autouse=True)
def _started():
    popdist_torch.horovod.init()


def network():
    return nn.Sequential(
        nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3, momentum=None))
    ).double()


def test_a_process_alone_normalizes_as_torch_does():
    expected, model = network(), popdist_torch.SyncBatchNorm.convert_sync_batchnorm(network())
    for train in (True, True, False):
        results = [net.train(train)(X) for net in (expected, model)]
        torch.testing.assert_close(*results, rtol=0, atol=0)
    torch.testing.assert_close(expected.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_layers_are_converted_where_they_are():
    model = network()
    first, weight = model[0], model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert popdist_torch.SyncBatchNorm.convert_sync_batchnorm(model) is model
    assert model[0] is first
    assert optimizer.param_groups[0]["params"][0] is first.weight is weight
    assert all(type(part[0]) is popdist_torch.SyncBatchNorm for part in (model, model[1]))
    copied = copy.deepcopy(model)
    torch.testing.assert_close(copied(X), model(X))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_every_layer_of_torch_is_converted(kind):
    layer = popdist_torch.SyncBatchNorm.convert_sync_batchnorm(kind(3))
    assert layer(X.float()).shape == X.shape


def test_a_layer_with_a_forward_of_its_own_is_refused():
    class Doubled(nn.BatchNorm2d):
        def forward(self, input):  # noqa: A002 - torch's name
            return super().forward(input) * 2

    with pytest.raises(Error, match=r"(?s)\[PD336\].*would be lost.*0: .*Doubled") as caught:
        popdist_torch.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(Doubled(3)))
    assert "derive the layer from popdist_torch.SyncBatchNorm" in str(caught.value)


def test_a_group_of_processes_and_inputs_without_channels_are_refused():
    with pytest.raises(Error, match="PD336"):
        popdist_torch.SyncBatchNorm.convert_sync_batchnorm(network(), "some group")
    with pytest.raises(ValueError, match="at least 2D"):
        popdist_torch.SyncBatchNorm(3)(torch.ones(3))


class Normalized(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = norm
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        y = self.last(torch.tanh(self.norm(self.first(x))))
        return popdist_torch.identity_loss(y.square(), "mean")


def test_local_replicas_normalize_together():
    torch.manual_seed(3)
    alone, model = (Normalized(kind(4)) for kind in (nn.BatchNorm1d, popdist_torch.SyncBatchNorm))
    alone, model = alone.double(), model.double()
    model.load_state_dict(alone.state_dict())
    options = popdist_torch.Options().replicationFactor(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    training = popdist_torch.trainingModel(model, options, optimizer=optimizer)
    plain = torch.optim.SGD(alone.parameters(), lr=0.5)
    for _ in range(3):
        x = torch.randn(6, 3).double()
        training(x)
        plain.zero_grad()
        alone(x).backward()
        plain.step()
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    inference = popdist_torch.inferenceModel(model.eval(), options.clone())
    torch.testing.assert_close(inference(x[:3]).mean(), alone.eval()(x[:3]))
