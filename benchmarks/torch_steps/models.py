"""What is trained: a large perceptron, a small residual network and a small transformer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Workload:
    """A model with the shape of its batches.

    Attributes:
        make: Builds the model; ``forward(x, y)`` is its loss.
        shape: Of one sample's input.
        batch: Samples of one rank's step.
        classes: Of the targets.
        tokens: Whether inputs are whole numbers, and every position has a target.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    classes: int
    tokens: bool = False

    def data(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One batch.

        Args:
            seed: Of its numbers.

        Returns:
            Inputs and targets.
        """
        generator = torch.Generator().manual_seed(seed)
        shape = (self.batch, *self.shape)
        if self.tokens:
            x = torch.randint(0, self.classes, shape, generator=generator)
            return x, torch.randint(0, self.classes, shape, generator=generator)
        x = torch.randn(shape, generator=generator)
        return x, torch.randint(0, self.classes, (self.batch,), generator=generator)


class Classifier(nn.Module):
    """A network whose forward pass is its loss.

    Args:
        *layers: The network.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of inputs and targets."""
        return functional.cross_entropy(self.layers(x).flatten(0, -2), y.flatten())


class Block(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2015, figure 5 left).

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        stride: Of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return functional.relu(self.body(x) + self.shortcut(x))


def perceptron() -> nn.Module:
    """25.2 million parameters in three layers."""
    sizes = (1024, 4096, 4096, 1000)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return Classifier(*layers[:-1])


def residual() -> nn.Module:
    """ResNet-18's blocks at half its width for images of 32 x 32: 2.8 million parameters."""
    blocks: list[nn.Module] = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    channels = 32
    for width, stride in ((32, 1), (64, 2), (128, 2), (256, 2)):
        blocks += [Block(channels, width, stride), Block(width, width, 1)]
        channels = width
    return Classifier(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def transformer() -> nn.Module:
    """Four encoder layers of width 256 over a vocabulary of 2000: 4.2 million parameters."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return Classifier(nn.Embedding(2000, 256), encoder, nn.Linear(256, 2000))


WORKLOADS = {
    "25 M perceptron": Workload(perceptron, (1024,), 32, 1000),
    "residual network": Workload(residual, (3, 32, 32), 16, 10),
    "transformer": Workload(transformer, (64,), 8, 2000, tokens=True),
}
