"""The networks, in torch, and their ONNX files. A step's loss is cross entropy over ten classes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
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


class BertLayer(nn.Module):
    """A layer of BERT-base, normalised last, whose mean output is classified."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.scores = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores for [batch, length, width]."""
        scores: torch.Tensor = self.scores(self.layer(x).mean(1))
        return scores


class VisionTransformer(nn.Module):
    """ViT-tiny for images of 32 x 32: patches of 4 x 4, 12 layers, and a token for the class."""

    def __init__(self, size: int = 32, patch: int = 4, width: int = 192) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(Encoder(width, 3) for _ in range(12)), nn.LayerNorm(width))
        self.scores = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores for [batch, 3, size, size]."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        first = self.token.expand(len(x), -1, -1)
        hidden = self.layers(torch.cat([first, tokens], 1) + self.position)
        scores: torch.Tensor = self.scores(hidden[:, 0])
        return scores


class UNet(nn.Module):
    """A U-Net of two levels, whose mean map is classified."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList([_pair(3, width), _pair(width, 2 * width)])
        self.bottom = _pair(2 * width, 4 * width)
        self.grow = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                nn.ConvTranspose2d(2 * width, width, 2, 2),
            ]
        )
        self.up = nn.ModuleList([_pair(4 * width, 2 * width), _pair(2 * width, width)])
        self.scores = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores for [batch, 3, height, width]."""
        kept = []
        for down in self.down:
            kept.append(down(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([kept.pop(), grow(x)], 1))
        scores: torch.Tensor = self.scores(x).mean((2, 3))
        return scores


def _pair(inputs: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


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
        difference: By how much of the first loss those after updates may differ between right
            programs.
    """

    make: Callable[[], nn.Module]
    data: Callable[[], torch.Tensor]
    labels: int
    difference: float = 1e-5


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


def _resnet(kind: type[Residual | Bottleneck], blocks: tuple[int, ...]) -> nn.Module:
    """A ResNet as published for images of 224 x 224; smaller ones reach it too."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs, wider = 64, 4 if kind is Bottleneck else 1
    for stage, count in enumerate(blocks):
        for index in range(count):
            layers.append(kind(inputs, 64 << stage, 2 if stage and not index else 1))
            inputs = wider * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def _resnet18() -> nn.Module:
    return _resnet(Residual, (2, 2, 2, 2))


def _resnet50() -> nn.Module:
    return _resnet(Bottleneck, (3, 4, 6, 3))


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
    "resnet18-32": Model(_resnet18, lambda: torch.randn(16, 3, 32, 32), 16, 1e-2),
    # Its last batch norms are over 16 numbers: rounding changes the next loss by some percent.
    "resnet50-32": Model(_resnet50, lambda: torch.randn(16, 3, 32, 32), 16, 0.5),
    "resnet18": Model(_resnet18, lambda: torch.randn(4, 3, 224, 224), 4, 1e-3),
    "resnet50": Model(_resnet50, lambda: torch.randn(4, 3, 224, 224), 4, 5e-2),
    "unet": Model(UNet, lambda: torch.randn(8, 3, 64, 64), 8),
    "vit": Model(VisionTransformer, lambda: torch.randn(16, 3, 32, 32), 16),
    "bert": Model(BertLayer, lambda: torch.randn(4, 64, 768), 4),
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
        path: The file; its inputs are ``x`` and ``labels``, its loss is ``loss``. A file of numpy
            beside it has both inputs.
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
    np.savez(path.with_suffix(".npz"), x=inputs.numpy(), labels=labels.numpy())
