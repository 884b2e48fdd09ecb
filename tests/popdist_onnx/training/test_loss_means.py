"""Losses on parts of a batch train as on the whole batch, or are named."""

import copy

import numpy as np
import pytest
import torch
from onnx import parser
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


def several(scores, wanted):
    """Means with other divisors, as those of several tasks."""
    return [
        functional.mse_loss(scores, wanted),
        masked(scores, wanted, 1.0),
        functional.cross_entropy(scores, wanted.argmax(1), ignore_index=1),
    ]


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
    "a root of a mean": (lambda o, y: functional.mse_loss(o, y).sqrt(), Y, None),
    "a square of a mean": (lambda o, y: functional.l1_loss(o, y) ** 2, Y, None),
    "perplexity": (lambda o, y: functional.cross_entropy(o, y).exp(), PADDED, None),
    "a masked mean of at least one": (lambda o, y: masked(o, y, 1.0), Y, None),
    "a masked mean of at least ten": (lambda o, y: masked(o, y, 10.0), Y, None),
    "a masked mean with an epsilon": (
        lambda o, y: ((o - y).abs() * (y > 0)).sum() / ((y > 0).sum() + 0.5),
        Y,
        None,
    ),
    "a masked mean where something counts": (
        lambda o, y: torch.where(
            (y > 1).sum() > 0, ((o - y) ** 2 * (y > 1)).sum() / (y > 1).sum(), torch.tensor(0.0)
        ),
        Y,
        None,
    ),
    "the inverse of a limited sum": (
        lambda o, y: ((o - y) ** 2 * (y > 0)).sum() * (1 / (y > 0).sum().clamp(min=2)),
        Y,
        None,
    ),
    "weights that are normalised": (
        lambda o, y: ((o - y) ** 2 * (y**2 / (y**2).sum())).sum(),
        Y,
        None,
    ),
    "a mean over amounts that train": (
        lambda o, y: (o * y).sum() / (o * y > 0).to(o.dtype).sum(),
        Y,
        None,
    ),
    "a ratio of sums that train": (
        lambda o, y: 1 - 2 * (o * y).sum() / ((o**2).sum() + (y**2).sum()),
        Y,
        None,
    ),
    "a product of means": (
        lambda o, y: functional.mse_loss(o, y) * functional.l1_loss(o, y),
        Y,
        None,
    ),
    "the half of two means": (lambda o, y: (several(o, y)[0] + several(o, y)[1]) / 2, Y, None),
    "the mean of several means": (lambda o, y: torch.stack(several(o, y)).mean(), Y, None),
    "weighted means": (
        lambda o, y: (torch.stack(several(o, y)) * torch.tensor([0.3, 2.0, 0.1])).sum(),
        Y,
        None,
    ),
    "a mean of features": (lambda o, y: ((o - y) ** 2).mean(0).sum(), Y, None),
    "masks by feature": (
        lambda o, y: (((o - y) ** 2 * (y > 0)).sum(0) / (y > 0).sum(0).clamp(min=1)).mean(),
        Y,
        None,
    ),
    "roots of the parts of a mean": (
        lambda o, y: sum(
            one.sum() for one in map(torch.sqrt, ((o - y) ** 2).mean(0).split([1, 2]))
        ),
        Y,
        None,
    ),
    "selected samples": (lambda o, y: ((o - y) ** 2)[y > 0.5].mean(), Y, None),
    "selected labels, of which a part has none": (
        lambda o, y: functional.cross_entropy(o[y >= 0], y[y >= 0]),
        NOTHING,
        None,
    ),
    "selected labels with weights": (
        lambda o, y: functional.nll_loss(
            o[y >= 0].log_softmax(1), y[y >= 0], PER_CLASS.to(o.dtype), ignore_index=1
        ),
        PADDED,
        None,
    ),
    "selected rows": (lambda o, y: functional.mse_loss(o[y[:, 0] > 0], y[y[:, 0] > 0]), Y, None),
    "a standardised target": (
        lambda o, y: ((o - (y - y.mean())) ** 2).mean(),
        Y,
        None,
    ),
    "a sum by a constant": (lambda o, y: ((o - y) ** 2).sum() / 100, Y, "sum over samples"),
    "a sum by its size": (lambda o, y: ((o - y) ** 2).sum() / o.shape[0], Y, None),
    "a root of a sum": (lambda o, y: ((o - y) ** 2).sum().sqrt(), Y, "PD600"),
    "a norm": (lambda o, y: (o - y).norm(), Y, "PD600"),
    "the largest error": (lambda o, y: (o - y).abs().max(), Y, "PD600"),
    "a mean beside the largest error": (
        lambda o, y: masked(o, y) + (o - y).abs().max(),
        Y,
        "PD600",
    ),
    "similarities of samples": (
        lambda o, y: (o @ y.T).square().mean(),
        Y,
        "PD600",
    ),
    "a mean over samples behind others": (
        lambda o, y: (o - y).square().T.sum(1).sqrt().mean(),
        Y,
        "PD600",
    ),
    "a mean over features before samples": (
        lambda o, y: (o - y).square().T.sum(0).sqrt().mean(),
        Y,
        None,
    ),
    "a sum by a number that is converted": (
        lambda o, y: ((o - y) ** 2).sum() / torch.tensor(16),
        Y,
        "sum over samples",
    ),
    "a product of vectors": (lambda o, y: torch.dot(o.flatten(), y.flatten()), Y, "PD600"),
    "a deviation": (
        lambda o, y: ((o - y) ** 2 / (y - y.mean()).square().mean().sqrt()).mean(),
        Y,
        "PD600",
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


def by_torch(net, loss, labels, rate=RATE):
    """The weights after a step in float64, and the loss before it."""
    net = copy.deepcopy(net).double()
    kept = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss
    given = torch.as_tensor(labels)
    value = kept(
        net(torch.tensor(X).double()), given.double() if given.is_floating_point() else given
    )
    value.backward()
    stepped = {n: (w - rate * w.grad).detach().numpy() for n, w in net.named_parameters()}
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
        warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert differ == (named is not None and accumulation > 1)
        assert len(warned) == differ
        assert all(named in text for text in warned)
        if not differ:
            assert said == pytest.approx(value, rel=1e-5)


def halved(tensor):
    """In half precision where the network computes in float32; the reference is in float64."""
    return tensor.half() if tensor.dtype is torch.float32 else tensor


def half_masked(scores, wanted):
    counted = halved((wanted > 0).to(scores.dtype))
    rows = (halved(scores) - halved(wanted)) ** 2 * 8000
    return (rows * counted).sum() / counted.sum().clamp(min=1)


HALVES = {
    "labels": (lambda o, y: functional.cross_entropy(halved(o), y), PADDED, 0.5),
    "a mask": (half_masked, Y, 1e-4),
}


@pytest.mark.parametrize("case", HALVES)
def test_means_in_half_precision_are_divided_in_a_wider_type(case, caplog):
    """Sums of rows, up to 100,000, are no numbers of half precision."""
    loss, labels, rate = HALVES[case]
    torch.manual_seed(0)
    net = nn.Linear(4, CLASSES)
    wanted, value = by_torch(net, loss, labels, rate)
    made = popdist_onnx.from_torch(
        net, torch.tensor(X), loss, example_labels=torch.as_tensor(labels), check=False
    )
    trainer = popdist_onnx.Trainer(
        made, optimizer="sgd", learning_rate=rate, batch_size=2, accumulation=4
    )
    said = trainer.fit(X, labels, shuffle=False)
    assert "PD600" not in caplog.text
    assert said[0] == pytest.approx(value, rel=1e-3)
    for name, weight in wanted.items():
        step = weight - net.state_dict()[name].numpy()
        found = trainer.weights[name] - net.state_dict()[name].numpy()
        np.testing.assert_allclose(found, step, rtol=0, atol=2e-3 * np.abs(step).max())


class Body(nn.Module):
    """A network whose forward pass is another one in each part, or each time."""

    def __init__(self, layer):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), layer, nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x):
        return self.layers(x)


def test_curves_of_means_use_the_numbers_that_batch_normalisation_has_in_each_part():
    torch.manual_seed(0)
    net = Body(nn.BatchNorm1d(6))
    reference = copy.deepcopy(net).double()
    outputs = [reference(part) for part in torch.tensor(X).double().split(ROWS // 2)]
    value = functional.mse_loss(torch.cat(outputs), torch.tensor(Y).double()).sqrt()
    value.backward()
    found, said = weights(net, lambda o, y: functional.mse_loss(o, y).sqrt(), Y, accumulation=2)
    assert said == pytest.approx(value.item(), rel=1e-5)
    for name, weight in reference.named_parameters():
        wanted = (weight - RATE * weight.grad).detach().numpy()
        np.testing.assert_allclose(found[name], wanted, atol=1e-5)


def test_curves_of_means_after_dropout_are_named(caplog):
    weights(Body(nn.Dropout(0.5)), lambda o, y: functional.mse_loss(o, y).sqrt(), Y, accumulation=2)
    assert "PD600" in caplog.text


def test_losses_behind_a_thousand_layers_are_read():
    layers = [f"h{n + 1} = MatMul(h{n}, turn)" for n in range(1000)]
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float loss) <float[2] w ='
        f" {{1, 2}}, float[2, 2] turn = {{0, 1, 1, 0}}> {{ h0 = Mul(x, w) {' '.join(layers)}"
        " s = Mul(h1000, h1000) m = ReduceMean<keepdims = 0>(s) loss = Sqrt(m) }"
    )
    trainer = popdist_onnx.Trainer(
        proto,
        loss="loss",
        optimizer="sgd",
        learning_rate=RATE,
        batch_size=2,
        accumulation=4,
        freeze="turn",
    )
    said = trainer.fit(X[:, :2], shuffle=False)
    w = torch.tensor([1.0, 2.0]).double().requires_grad_()
    value = (torch.tensor(X[:, :2]).double() * w).square().mean().sqrt()
    value.backward()
    assert said[0] == pytest.approx(value.item(), rel=1e-5)
    wanted = (w - RATE * w.grad).detach().numpy()
    np.testing.assert_allclose(trainer.weights["w"], wanted, atol=1e-5)


def of_popart(reduction, ignored):
    """A network with PopART's loss of probabilities, and labels as input."""
    builder = popdist_onnx.Builder()
    x = builder.addInputTensor("FLOAT", [2, 4], "x")
    labels = builder.addInputTensor("INT32", [2], "classes")
    numbers = np.random.default_rng(1).normal(size=(4, CLASSES)).astype(np.float32)
    w = builder.addInitializedInputTensor(numbers, "w")
    shares = builder.aiOnnx.softmax([builder.aiOnnx.matmul([x, w])], axis=1)
    loss = builder.aiGraphcore.nllloss([shares, labels], reduction, ignoreIndex=ignored)
    builder.addOutputTensor(loss)
    return builder.getModelProto(), loss, numbers


def test_losses_of_popart_are_divided_and_named_too(caplog):
    kept = popdist_onnx.ReductionType.Mean
    for reduction, ignored, named in ((kept, -100, 0), (popdist_onnx.ReductionType.Sum, -100, 1)):
        caplog.clear()
        proto, loss, numbers = of_popart(reduction, ignored)
        trainer = popdist_onnx.Trainer(
            proto, loss=loss, optimizer="sgd", learning_rate=RATE, batch_size=2, accumulation=4
        )
        trainer.fit({"x": X, "classes": NOTHING.astype(np.int32)}, shuffle=False)
        assert caplog.text.count("sum over samples") == named
        w = torch.tensor(numbers).double().requires_grad_()
        functional.cross_entropy(torch.tensor(X).double() @ w, torch.tensor(NOTHING)).backward()
        wanted = (w - RATE * w.grad).detach().numpy()
        if not named:
            np.testing.assert_allclose(trainer.weights["w"], wanted, atol=1e-5)
