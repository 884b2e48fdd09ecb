"""Losses on parts of a batch train as on the whole batch, or are named."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import popdist_onnx

ROWS, CLASSES, RATE = 8, 3, 0.5
_NUMBERS = np.random.default_rng(0)
X = _NUMBERS.normal(size=(ROWS, 4)).astype(np.float32)
CHOSEN = _NUMBERS.integers(0, CLASSES, ROWS)
PADDED = np.where([True, True, True, True, True, True, False, False], CHOSEN, -100)
Y = _NUMBERS.normal(size=(ROWS, CLASSES)).astype(np.float32)
PER_CLASS = torch.tensor([1.0, 2.0, 0.5])

NOTHING = np.where(np.arange(ROWS) < ROWS // 2, CHOSEN, -100)
SHIFTED = np.where(_NUMBERS.random((ROWS, 3)) < 0.4, -100, _NUMBERS.integers(0, CLASSES, (ROWS, 3)))


def shifted(scores, labels):
    return functional.cross_entropy(scores.unsqueeze(2).repeat(1, 1, 2), labels[:, 1:])


def masked(scores, wanted, least=0.0):
    counted = (wanted > 0).to(scores.dtype)
    total = counted.sum().clamp(min=least) if least else counted.sum()
    return ((scores - wanted) ** 2 * counted).sum() / total


CASES = {
    "cross entropy": (nn.CrossEntropyLoss(), CHOSEN, None),
    "mean squared error": (nn.MSELoss(), Y, None),
    "mean absolute error": (nn.L1Loss(), Y, None),
    "mean of a divergence": (nn.KLDivLoss(reduction="batchmean"), np.abs(Y), None),
    "two means": (lambda o, y: functional.mse_loss(o, y) + 0.1 * functional.l1_loss(o, y), Y, None),
    "means of each sample": (lambda o, y: ((o - y) ** 2 / (1 + y**2)).mean(), Y, None),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), CHOSEN, None),
    "a sum of samples": (nn.MSELoss(reduction="sum"), Y, "sum over samples"),
    "a sum of absolute errors": (nn.L1Loss(reduction="sum"), Y, "sum over samples"),
    "a scaled sum": (lambda o, y: 0.5 * ((o - y) ** 2).sum(), Y, "sum over samples"),
    "a sum of cross entropies": (nn.CrossEntropyLoss(reduction="sum"), CHOSEN, "sum over samples"),
    "weights of classes": (nn.CrossEntropyLoss(weight=PER_CLASS), CHOSEN, None),
    "padding": (nn.CrossEntropyLoss(), PADDED, None),
    "a part of padding alone": (nn.CrossEntropyLoss(), NOTHING, None),
    "weights and padding": (nn.CrossEntropyLoss(weight=PER_CLASS), PADDED, None),
    "padding of logarithms": (
        lambda o, y: functional.nll_loss(torch.log_softmax(o, 1), y, ignore_index=2),
        CHOSEN,
        None,
    ),
    "shifted labels": (shifted, SHIFTED, None),
    "smoothed labels with padding": (nn.CrossEntropyLoss(label_smoothing=0.1), PADDED, None),
    "smoothed labels with weights and padding": (
        nn.CrossEntropyLoss(label_smoothing=0.1, weight=PER_CLASS),
        PADDED,
        None,
    ),
    "a masked mean": (masked, Y, None),
    "a masked mean beside another": (lambda o, y: masked(o, y) - 0.1 * o.mean(), Y, None),
    "a root of a mean": (lambda o, y: functional.mse_loss(o, y).sqrt(), Y, "a function of"),
    "a square of a mean": (lambda o, y: functional.l1_loss(o, y) ** 2, Y, "a function of"),
    "a masked mean of at least one": (lambda o, y: masked(o, y, 1.0), Y, "other amounts"),
    "a mean over amounts that train": (
        lambda o, y: (o * y).sum() / (o * y > 0).to(o.dtype).sum(),
        Y,
        "other amounts",
    ),
}


def weights(net, loss, labels, *, accumulation):
    made = popdist_onnx.from_torch(
        net, torch.tensor(X), loss, example_labels=torch.as_tensor(labels)
    )
    trainer = popdist_onnx.Trainer(
        made,
        optimizer="sgd",
        learning_rate=RATE,
        batch_size=ROWS // accumulation,
        accumulation=accumulation,
    )
    losses = trainer.fit(X, labels, shuffle=False)
    return trainer.weights, losses[0]


def by_torch(net, loss, labels):
    """The weights after a step in float64, and the loss before it."""
    net = copy.deepcopy(net).double()
    kept = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss
    given = torch.as_tensor(labels)
    value = kept(
        net(torch.tensor(X).double()), given.double() if given.is_floating_point() else given
    )
    value.backward()
    stepped = {n: (w - RATE * w.grad).detach().numpy() for n, w in net.named_parameters()}
    return stepped, value.item()


@pytest.mark.parametrize("case", CASES)
def test_a_loss_trains_as_on_the_whole_batch_or_is_named(case, caplog):
    loss, labels, named = CASES[case]
    torch.manual_seed(0)
    net = nn.Linear(4, CLASSES)
    wanted, value = by_torch(net, loss, labels)
    for accumulation in (1, 2, 4):
        caplog.clear()
        found, said = weights(net, loss, labels, accumulation=accumulation)
        differ = any(np.abs(found[name] - wanted[name]).max() > 1e-5 for name in wanted)
        warned = [one.getMessage() for one in caplog.records if " parts" in one.getMessage()]
        assert differ == (named is not None and accumulation > 1)
        assert len(warned) == differ
        assert all(named in text for text in warned)
        if not differ:
            assert said == pytest.approx(value, rel=1e-5)
