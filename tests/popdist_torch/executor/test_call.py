"""What a call measures, and what it makes of its inputs."""

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist_torch.executor.latency import Spans


class Seen(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, y):
        return x, y, poptorch.identity_loss(self.scale * x.mean(), reduction="none")


def test_latencies_are_measured_by_part():
    training = poptorch.trainingModel(Seen())
    assert training.getLatency() == (0.0, 0.0, 0.0)
    for _ in range(2):
        training(torch.ones(2, 1), torch.ones(2))
    for measured in (
        training.getLatency(),
        training.getComputeLatency(),
        training.getHostIpuLatency(),
        training.getIpuHostLatency(),
    ):
        least, most, mean = measured
        assert 0 < least <= mean <= most
    assert training.getComputeLatency()[2] < training.getLatency()[2]
    assert training.getExchangeLatency() == 0


def test_a_part_that_failed_is_not_counted():
    spans = Spans()
    with pytest.raises(ValueError, match="stop"), spans.timed():
        raise ValueError("stop")
    assert spans.summary() == (0.0, 0.0, 0.0)


def test_synthetic_data_takes_the_place_of_inputs():
    options = poptorch.Options().enableSyntheticData(enabled=True)
    training = poptorch.trainingModel(Seen(), options)
    first = training(torch.zeros(4, 3), torch.full((4,), 7))
    second = training(torch.ones(4, 3), torch.full((4,), 8))
    assert torch.equal(first[0], second[0])
    assert first[0].std() > 0.1
    assert first[1].tolist() == [0, 0, 0, 0]


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, rows, scalar, kept):
        rows[0]["x"] += 1
        rows[0]["x"][:, 0] *= 2
        scalar.fill_(3.0)
        return poptorch.identity_loss((self.scale * rows[0]["x"] + kept).mean(), reduction="none")


@pytest.mark.parametrize("wrapped", ["inferenceModel", "trainingModel"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inputs_that_forward_changes_in_place_are_changed(wrapped, mode):
    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    with mode():
        x, scalar, kept = torch.arange(16.0).view(8, 2).t().contiguous().t(), torch.zeros(1), None
        kept = torch.ones(8, 1)
        expected, untouched = x.clone() + 1, kept.clone()
        expected[:, 0] *= 2
    model = getattr(poptorch, wrapped)(InPlace(), options)
    model([{"x": x}], scalar.expand(4), kept)
    assert torch.equal(x, expected)
    assert torch.equal(kept, untouched)
    assert scalar.item() == 0  # rows of an expanded tensor have no place of their own


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_loss_stops_before_the_update(bad):
    model = Seen()
    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    training = poptorch.trainingModel(model, options, stop_at_bad_loss=True)
    x = torch.ones(4, 1)
    x[3] = bad  # iteration 1, replica 1
    with pytest.raises(poptorch.Error, match=r"update 2 \(device iteration 1") as caught:
        training(x, torch.ones(4))
    assert "replica 1, accumulation step 0" in str(caught.value)
    assert model.scale.item() == pytest.approx(1 - 0.01)  # the first update was made


def test_ordered_sums_are_those_of_plain_torch():
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.ones(8)
    weights = []
    for invariant in (False, True):
        model = Seen()
        training = poptorch.trainingModel(
            model, poptorch.Options().replicationFactor(4), placement_invariant=invariant
        )
        training(x, y)
        weights.append(model.scale.item())
    assert weights[0] == pytest.approx(weights[1], abs=1e-7)
