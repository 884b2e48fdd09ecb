"""The networks, in torch, and their ONNX files. A step's loss is cross entropy over ten classes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
import torch
from onnx import helper
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLASSES = 10


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return torch.relu(self.main(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = 4 * width
        self.main = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return torch.relu(self.main(x) + self.shortcut(x))


class Encoder(nn.Module):
    """A layer of a transformer encoder, normalised first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output for [batch, length, width]."""
        batch, length, width = x.shape
        normed = self.norms[0](x)
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            layer(normed).reshape(split).transpose(1, 2) for layer in self.project[:3]
        )
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.project[3](mixed)
        fed: torch.Tensor = self.feed(self.norms[1](x))
        return x + fed


class Transformer(nn.Module):
    """Four encoder layers over embedded tokens."""

    def __init__(self, width: int = 128, tokens: int = 1000, length: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Encoder(width, 4) for _ in range(4)), nn.LayerNorm(width))
        self.scores = nn.Linear(width, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores for [batch, length] of tokens."""
        hidden = self.layers(self.embedding(tokens) + self.position)
        scores: torch.Tensor = self.scores(hidden.mean(1))
        return scores


class Recurrent(nn.Module):
    """Two layers of LSTM, whose last output is classified."""

    def __init__(self, inputs: int = 128, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.LSTM(inputs, width, num_layers=2)
        self.scores = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores for [length, batch, inputs]."""
        scores: torch.Tensor = self.scores(self.layers(x)[0][-1])
        return scores


class Block(nn.Module):
    """A block of GPT-2: causal attention and a feed-forward part, each normalised first."""

    def __init__(self, width: int = 768, heads: int = 12, length: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.later: torch.Tensor
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output for [batch, length, width]."""
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.reshape(split).transpose(1, 2)
            for part in self.attend(self.norms[0](x)).chunk(3, -1)
        )
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(self.later, torch.finfo(scores.dtype).min)
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.project(mixed)
        fed: torch.Tensor = self.feed(self.norms[1](x))
        return x + fed


class OneBlock(nn.Module):
    """A block of GPT-2 whose mean output is classified."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.block = Block(width)
        self.scores = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores for [batch, length, width]."""
        scores: torch.Tensor = self.scores(self.block(x).mean(1))
        return scores


class SmallGPT2(nn.Module):
    """GPT-2 small: 12 blocks, and the embedding once more as the last layer."""

    def __init__(self, width: int = 768, tokens: int = 50257, length: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(12)), nn.LayerNorm(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores for each position of [batch, length] of tokens, as rows."""
        hidden = self.blocks(self.embedding(tokens) + self.position)
        scores: torch.Tensor = (hidden @ self.embedding.weight.T).flatten(0, 1)
        return scores


@dataclass(frozen=True)
class Model:
    """A network with the data of one step.

    Attributes:
        make: Makes the network.
        data: Makes the inputs.
        labels: How many labels there are.
    """

    make: Callable[[], nn.Module]
    data: Callable[[], torch.Tensor]
    labels: int


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)
    )


def _deep_mlp() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(1024, 1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, CLASSES))


def _small_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16, 16),
        Residual(16, 32, 2),
        Residual(32, 32),
        Residual(32, 64, 2),
        Residual(64, 64),
        nn.AvgPool2d(8),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def _resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if index == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AvgPool2d(7), nn.Flatten(), nn.Linear(2048, 1000))


MODELS = {
    "mlp": Model(_mlp, lambda: torch.randn(64, 784), 64),
    "resnet": Model(_small_resnet, lambda: torch.randn(32, 3, 32, 32), 32),
    "transformer": Model(Transformer, lambda: torch.randint(0, 1000, (16, 64)), 16),
    "lstm": Model(Recurrent, lambda: torch.randn(32, 32, 128), 32),
    "gpt2": Model(OneBlock, lambda: torch.randn(4, 64, 768), 4),
    "mlp-link": Model(_deep_mlp, lambda: torch.randn(2048, 784), 2048),
    "transformer-link": Model(
        lambda: Transformer(256), lambda: torch.randint(0, 1000, (32, 64)), 32
    ),
    "resnet50": Model(_resnet50, lambda: torch.randn(4, 3, 224, 224), 4),
    "gpt2-small": Model(SmallGPT2, lambda: torch.randint(0, 1000, (1, 64)), 64),
}


def build(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Makes a network and its data, the same in every process.

    Args:
        name: A key of `MODELS`.

    Returns:
        The network, its input, and class numbers.
    """
    torch.manual_seed(0)
    network = MODELS[name].make()
    inputs = MODELS[name].data()
    return network, inputs, torch.randint(0, CLASSES, (MODELS[name].labels,))


def export(name: str, path: Path) -> None:
    """Writes a network with its loss to an ONNX file.

    Args:
        name: A key of `MODELS`.
        path: The file; its inputs are ``x`` and ``labels``, its loss is ``loss``.
    """
    network, inputs, labels = build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (inputs,),
            path,
            input_names=["x"],
            output_names=["scores"],
            # Exported for inference, equal weights would become one and batch norms be folded.
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            dynamo=False,
        )
    model = onnx.load(path)
    model.graph.input.append(
        helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, [len(labels)])
    )
    model.graph.node.append(
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"])
    )
    onnx.save(model, path)
