"""Small relatives of well-known networks, with all the operators that their exports contain."""

from __future__ import annotations

import io
import math
import warnings

import onnx
import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    """ResNet's block: 1x1, 3x3, 1x1 around a shortcut."""

    def __init__(self, width: int, out: int, stride: int, inside: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, inside, 1, bias=False),
            nn.BatchNorm2d(inside),
            nn.ReLU(),
            nn.Conv2d(inside, inside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inside),
            nn.ReLU(),
            nn.Conv2d(inside, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.short = (
            nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride > 1 or width != out
            else nn.Identity()
        )

    def forward(self, x):
        return functional.relu(self.body(x) + self.short(x))


def resnet(blocks=(3, 4, 6, 3), width=4, classes=5) -> nn.Module:
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage, count in enumerate(blocks):
        inside = width * 2**stage
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            layers.append(Bottleneck(channels, inside * 4, stride, inside))
            channels = inside * 4
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


def vgg(classes=5) -> nn.Module:
    layers, channels = [], 3
    for width in (8, "pool", 16, 16, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
    layers += [nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(64, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, classes))


class Dense(nn.Module):
    """DenseNet's layer: its output is put beside its input."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(width), nn.Conv2d(width, growth, 3, 1, 1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.conv(functional.relu(self.norm(x)))], 1)


def densenet(classes=5) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        Dense(8, 4),
        Dense(12, 4),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 1, bias=False),
        nn.AvgPool2d(2),
        Dense(8, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, classes),
    )


class Inception(nn.Module):
    """Branches of several kernel sizes, side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, 4, 1)
        self.three = nn.Sequential(
            nn.Conv2d(width, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, (1, 3), padding=(0, 1))
        )
        self.five = nn.Sequential(nn.Conv2d(width, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 5, padding=2))
        self.pool = nn.Conv2d(width, 4, 1)

    def forward(self, x):
        pooled = functional.avg_pool2d(x, 3, 1, 1)
        return functional.relu(
            torch.cat([self.one(x), self.three(x), self.five(x), self.pool(pooled)], 1)
        )


def inception(classes=5) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.LocalResponseNorm(5),
        Inception(8),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(18),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(18, classes),
    )


class Fire(nn.Module):
    """SqueezeNet's module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(width, 4, 1)
        self.left, self.right = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, x):
        x = functional.relu(self.squeeze(x))
        return torch.cat([functional.relu(self.left(x)), functional.relu(self.right(x))], 1)


def squeezenet(classes=5) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(8),
        Fire(16),
        nn.Conv2d(16, classes, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Shuffle(nn.Module):
    """ShuffleNet's unit: half of the channels pass, depthwise, then they are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, groups=2, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
            nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
        )

    def forward(self, x):
        kept, worked = x.chunk(2, 1)
        x = torch.cat([kept, self.branch(worked)], 1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        return x.reshape(batch, channels, height, width)


def shufflenet(classes=5) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        Shuffle(8),
        Shuffle(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


class Attention(nn.Module):
    """Self-attention, spelt out as in BERT and GPT-2."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, 2)
        q, k, v = (one.view(batch, length, self.heads, -1).transpose(1, 2) for one in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        if self.causal:
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out(mixed)


class Block(nn.Module):
    """A transformer's layer, normalized before (GPT-2) or after (BERT) its parts."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.attention = Attention(width, heads, causal)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        gelu = nn.GELU(approximate="tanh" if causal else "none")
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), gelu, nn.Linear(4 * width, width))

    def forward(self, x):
        if self.causal:
            x = x + self.attention(self.first(x))
            return x + self.feed(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.feed(x))


class Transformer(nn.Module):
    """Embeddings, layers and a head, like BERT's or GPT-2's."""

    def __init__(self, causal: bool, width=16, heads=2, layers=2, words=11, length=6) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal) for _ in range(layers)))
        self.last, self.causal = nn.LayerNorm(width), causal
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, words)

    def forward(self, tokens):
        x = self.word(tokens) + self.place(torch.arange(tokens.shape[1]))
        x = self.last(self.blocks(x))
        if self.causal:
            return self.head(x).flatten(0, 1)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


class Recurrent(nn.Module):
    """A recurrent network over words."""

    def __init__(self, kind: type, **settings) -> None:
        super().__init__()
        self.word = nn.Embedding(11, 6)
        self.layers = kind(6, 5, 2, batch_first=True, **settings)
        self.head = nn.LazyLinear(5)

    def forward(self, tokens):
        out, _ = self.layers(self.word(tokens))
        return self.head(out[:, -1])


IMAGES, WORDS = (2, 3, 32, 32), (3, 6)

MODELS = {
    "resnet50": (resnet, (4, 3, 64, 64)),
    "vgg": (vgg, IMAGES),
    "densenet": (densenet, IMAGES),
    "inception": (inception, IMAGES),
    "squeezenet": (squeezenet, IMAGES),
    "shufflenet": (shufflenet, IMAGES),
    "bert": (lambda: Transformer(causal=False), WORDS),
    "gpt2": (lambda: Transformer(causal=True), WORDS),
    "lstm": (lambda: Recurrent(nn.LSTM, bidirectional=True), WORDS),
    "gru": (lambda: Recurrent(nn.GRU), WORDS),
    "rnn": (lambda: Recurrent(nn.RNN), WORDS),
}


def batch(shape: tuple[int, ...]) -> torch.Tensor:
    if len(shape) > 2:
        return torch.randn(shape)
    return torch.randint(0, 11, shape)


def exported(model: nn.Module, x: torch.Tensor, opset: int = 17, **settings) -> onnx.ModelProto:
    """The model as torch writes it for training: nothing folded, batch statistics used."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (x,),
            file,
            dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            opset_version=opset,
            input_names=["x"],
            output_names=["scores"],
            **settings,
        )
    return onnx.load_from_string(file.getvalue())
