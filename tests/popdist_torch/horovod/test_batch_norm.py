"""Batch normalization over all processes: what a process alone sees of it."""

import copy

import pytest
import torch
from torch import nn

import popdist_torch
from popdist_torch.errors import Error

X = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


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


@pytest.mark.parametrize("trains", [True, False])
def test_local_replicas_cannot_normalize_together(trains):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = popdist_torch.SyncBatchNorm(3)

        def forward(self, x):
            return popdist_torch.identity_loss(self.norm(x), "sum")

    options = popdist_torch.Options().replicationFactor(2)
    wrap = popdist_torch.trainingModel if trains else popdist_torch.inferenceModel
    with pytest.raises(Error, match=r"(?s)\[PD336\].*2 local replicas"):
        wrap(Model(), options)(torch.ones(4, 3))
    evaluated = popdist_torch.inferenceModel(Model().eval(), options.clone())
    assert evaluated(torch.ones(4, 3)) is not None
