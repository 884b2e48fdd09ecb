"""Losses that ONNX has no operator for train as in torch, in float64."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import popdist_onnx
from tests.popdist_onnx.training.test_torch_modules import EXPORTERS

FEATURES, CLASSES, ROWS, BATCH, RATE = 6, 5, 32, 8, 0.1
FACTORS = torch.linspace(0.5, 1.5, CLASSES)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def samples():
    return np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)


def labels(kind):
    x = samples()[:, :CLASSES]
    match kind:
        case "classes":
            return x.argmax(1)
        case "some ignored":
            return np.where(np.arange(ROWS) % 5, x.argmax(1), -100)
        case "one ignored":
            return np.where(np.arange(ROWS) % 5, x.argmax(1), 2)
        case "signs":
            return np.sign(x)
        case "counts":
            return np.floor(np.exp(x))
    shares = np.exp(x)
    return shares / shares.sum(1, keepdims=True)


class Inside(nn.Module):
    """A network that computes its loss itself."""

    def __init__(self):
        super().__init__()
        self.body = network()
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x, target):
        return self.loss(self.body(x), target)


def smooth(**settings):
    return lambda: nn.CrossEntropyLoss(label_smoothing=0.1, **settings)


def weighted(**settings):
    return lambda: nn.CrossEntropyLoss(weight=FACTORS.clone(), **settings)


CASES = {
    "smoothing": (smooth(), "classes"),
    "smoothing, sum": (smooth(reduction="sum"), "classes"),
    "smoothing, ignored": (smooth(), "some ignored"),
    "smoothing, a class ignored": (smooth(ignore_index=2), "one ignored"),
    "smoothing, weights": (weighted(label_smoothing=0.1), "classes"),
    "smoothing, weights, ignored": (weighted(label_smoothing=0.2), "some ignored"),
    "weights, ignored": (weighted(), "some ignored"),
    "probabilities": (nn.CrossEntropyLoss, "shares"),
    "probabilities, sum": (lambda: nn.CrossEntropyLoss(reduction="sum"), "shares"),
    "probabilities, smoothing": (smooth(), "shares"),
    "probabilities, weights": (weighted(), "shares"),
    "probabilities, weights, smoothing": (weighted(label_smoothing=0.2), "shares"),
    "a function": (
        lambda: lambda y, t: functional.cross_entropy(y, t, label_smoothing=0.3).mean(),
        "classes",
    ),
    "Huber": (lambda: nn.HuberLoss(delta=0.4), "shares"),
    "smooth L1": (lambda: nn.SmoothL1Loss(beta=0.3), "shares"),
    "L1": (nn.L1Loss, "shares"),
    "a mean square of normed numbers": (
        lambda: lambda y, t: functional.mse_loss(functional.rms_norm(y, y.shape[1:], eps=0.01), t),
        "shares",
    ),
    "L1 as smooth": (lambda: nn.SmoothL1Loss(beta=0.0), "shares"),
    "Poisson": (nn.PoissonNLLLoss, "counts"),
    "Poisson, whole": (lambda: nn.PoissonNLLLoss(full=True), "counts"),
    "Poisson of numbers": (
        lambda: lambda y, t: functional.poisson_nll_loss(y.exp(), t, log_input=False),
        "counts",
    ),
    "soft margin": (nn.SoftMarginLoss, "signs"),
    "binary": (lambda: lambda y, t: functional.binary_cross_entropy(y.sigmoid(), t), "shares"),
    "binary, weights, sum": (
        lambda: (
            lambda y, t: functional.binary_cross_entropy(
                y.sigmoid(), t, FACTORS.to(y.dtype), reduction="sum"
            )
        ),
        "shares",
    ),
    "binary, saturated": (
        lambda: (
            lambda y, t: functional.binary_cross_entropy(
                torch.cat([y[:, :1] * 0, y[:, 1:].sigmoid(), y[:, :1] * 0 + 1], 1),
                torch.cat([t, t[:, :1]], 1),
            )
        ),
        "shares",
    ),
    "hinge of embeddings": (lambda: nn.HingeEmbeddingLoss(margin=0.5), "signs"),
    "cosine": (
        lambda: lambda y, t: functional.cosine_embedding_loss(y[:, :3], y[:, 2:], t[:, 0], 0.1),
        "signs",
    ),
    "ranking": (
        lambda: lambda y, t: functional.margin_ranking_loss(y[:, :2], y[:, 2:4], t[:, :2], 0.2),
        "signs",
    ),
    "margins of classes": (lambda: nn.MultiMarginLoss(margin=0.3), "classes"),
    "squared margins, weights": (
        lambda: nn.MultiMarginLoss(p=2, weight=FACTORS.clone(), reduction="sum"),
        "classes",
    ),
    "triplets": (
        lambda: lambda y, t: functional.triplet_margin_loss(y[:, :2], y[:, 2:4], t[:, :2]),
        "shares",
    ),
    "triplets, swapped, by cubes": (
        lambda: (
            lambda y, t: functional.triplet_margin_loss(
                y[:, :2], y[:, 2:4], t[:, :2], margin=2.0, p=3, swap=True, reduction="sum"
            )
        ),
        "shares",
    ),
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", CASES)
def test_a_loss_trains_as_in_torch(name, exporter):
    make, kind = CASES[name]
    x, y = samples(), labels(kind)
    y = y.astype(np.float32) if y.dtype == np.float64 else y
    proto = popdist_onnx.from_torch(
        network(),
        torch.from_numpy(x[:BATCH]),
        loss=make(),
        example_labels=torch.from_numpy(y[:BATCH]),
        exporter=exporter,
    )
    compared(proto, {"x": x, "labels": y}, make, name)


def test_a_loss_inside_of_the_module_trains_as_in_torch():
    x, y = samples(), labels("classes")
    examples = (torch.from_numpy(x[:BATCH]), torch.from_numpy(y[:BATCH]))
    proto = popdist_onnx.from_torch(Inside(), examples, input_names=["x", "target"])
    compared(proto, {"x": x, "target": y}, smooth(), "inside", loss="output", prefix="body.")


def compared(proto, data, make, name, loss=None, prefix=""):
    trainer = popdist_onnx.Trainer(
        proto, optimizer="sgd", learning_rate=RATE, batch_size=BATCH, loss=loss
    )
    history = trainer.fit(data, epochs=2, shuffle=False)
    weights, losses = by_torch(make(), *data.values())
    np.testing.assert_allclose(list(history), losses, rtol=1e-5, err_msg=name)
    start = dict(network().named_parameters())
    for key, wanted in weights.items():
        assert np.abs(wanted - start[key].detach().numpy()).max() > 1e-4
        np.testing.assert_allclose(
            trainer.weights[prefix + key], wanted, rtol=1e-5, atol=2e-6, err_msg=f"{name} {key}"
        )


def by_torch(loss, x, y, batch=BATCH, epochs=2):
    """The weights after SGD, and the mean loss of each epoch."""
    module = network().double()
    loss = loss.double() if isinstance(loss, nn.Module) else loss
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    x, y = torch.from_numpy(x).double(), torch.from_numpy(y)
    y = y.double() if y.is_floating_point() else y
    means = []
    for _ in range(epochs):
        found = []
        for rows in range(0, len(x), batch):
            value = loss(module(x[rows : rows + batch]), y[rows : rows + batch])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            found.append(float(value.detach()))
        means.append(np.mean(found))
    return {name: one.detach().numpy() for name, one in module.named_parameters()}, means
