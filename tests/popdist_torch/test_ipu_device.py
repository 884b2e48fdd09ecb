"""Tensors that are created on the device ``"ipu"``."""

import pytest
import torch

import popdist_torch  # noqa: F401 - registers the device's operators


@pytest.mark.parametrize(
    "create",
    [
        lambda device: torch.zeros(2, 3, device=device),
        lambda device: torch.ones(2, dtype=torch.float16, device=device),
        lambda device: torch.arange(1, 9, 2, device=device),
        lambda device: torch.full((2,), 3.5, device=device),
        lambda device: torch.eye(3, device=device),
        lambda device: torch.linspace(0, 1, 5, device=device),
        lambda device: torch.zeros_like(torch.ones(2, 2), device=device),
        lambda device: torch.manual_seed(3) and torch.randn(4, device=device),
        lambda device: torch.manual_seed(3) and torch.randint(0, 9, (4,), device=device),
        lambda device: torch.tensor([1.0, 2.0], device=f"{device}:0"),
        lambda device: torch.tensor([1.0, 2.0], requires_grad=True, device=device),
        lambda device: torch.as_tensor([1, 2], device=torch.device(device)),
        lambda device: torch.arange(4.0).view(2, 2).T.to(device, torch.float64),
        lambda device: torch.arange(4.0).view(2, 2).T.to(f"{device}:0", torch.float64),
    ],
)
def test_tensors_are_those_of_the_processor(create):
    made, wanted = create("ipu"), create("cpu")
    assert made.device == wanted.device
    assert made.dtype == wanted.dtype
    assert torch.equal(made, wanted)


def test_a_model_moves_to_the_device():
    layer = torch.nn.Linear(2, 3)
    weight = layer.weight.detach().clone()
    assert torch.equal(layer.to("ipu:0").weight, weight)
    assert torch.equal(layer.to("ipu").weight, weight)
    assert torch.nn.Linear(2, 3, device="ipu").weight.device.type == "cpu"
