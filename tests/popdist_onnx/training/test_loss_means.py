"""Losses that do not add up from parts of a batch are named; those that do are not."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import popdist_onnx

ROWS, CLASSES = 8, 3
_NUMBERS = np.random.default_rng(0)
X = _NUMBERS.normal(size=(ROWS, 4)).astype(np.float32)
CHOSEN = _NUMBERS.integers(0, CLASSES, ROWS)
PADDED = np.where([True, True, True, True, True, True, False, False], CHOSEN, -100)
Y = _NUMBERS.normal(size=(ROWS, CLASSES)).astype(np.float32)
PER_CLASS = torch.tensor([1.0, 2.0, 0.5])

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
    "weights of classes": (nn.CrossEntropyLoss(weight=PER_CLASS), CHOSEN, "other amounts"),
    "padding": (nn.CrossEntropyLoss(), PADDED, "other amounts"),
    "smoothed labels with padding": (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        PADDED,
        "other amounts",
    ),
    "a masked mean": (
        lambda o, y: ((o - y) ** 2 * (y > 0)).sum() / (y > 0).float().sum(),
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
        learning_rate=0.5,
        batch_size=ROWS // accumulation,
        accumulation=accumulation,
    )
    trainer.fit(X, labels, shuffle=False)
    return trainer.weights


@pytest.mark.parametrize("case", CASES)
def test_what_differs_from_one_batch_is_named(case, caplog):
    loss, labels, named = CASES[case]
    torch.manual_seed(0)
    net = nn.Linear(4, CLASSES)
    whole = weights(net, loss, labels, accumulation=1)
    assert "2 parts" not in caplog.text
    parts = weights(net, loss, labels, accumulation=2)
    differ = any(np.abs(parts[name] - whole[name]).max() > 1e-5 for name in whole)
    warned = [one.getMessage() for one in caplog.records if "2 parts" in one.getMessage()]
    assert differ == (named is not None)
    assert len(warned) == differ
    assert all(named in text for text in warned)
