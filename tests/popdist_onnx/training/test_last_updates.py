"""The end of a data set: a smaller update, in which each sample has the weight that torch gives."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

import popdist_onnx
from tests.popdist_onnx.training.test_trainer import CLASSES, FEATURES, exported

SAMPLES, GLOBAL_BATCH, EPOCHS = 22, 8, 2
RATE = 0.05


def samples(count=SAMPLES):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, count)
    # In the last update, half of the labels do not count.
    y[count - count % GLOBAL_BATCH :: 2] = -100
    return x, y


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, RATE, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, RATE),
}


def by_torch(optimizer="momentum", count=SAMPLES):
    """Weights and the losses of epochs, over samples that count, in double precision."""
    model, (x, y) = network().double(), samples(count)
    steps, losses = OPTIMIZERS[optimizer](model.parameters()), []
    for _ in range(EPOCHS):
        total = 0.0
        for start in range(0, count, GLOBAL_BATCH):
            rows = slice(start, start + GLOBAL_BATCH)
            loss = nn.functional.cross_entropy(
                model(torch.from_numpy(x[rows]).double()), torch.from_numpy(y[rows])
            )
            steps.zero_grad()
            loss.backward()
            steps.step()
            total += loss.item() * len(x[rows])
        losses.append(total / count)
    return {name: one.detach().numpy() for name, one in model.named_parameters()}, losses


def made(optimizer="momentum", parts=1, instances=1):
    """A trainer of the global batch in micro-batches, by a loss that leaves labels out."""
    x, y = samples()
    model = popdist_onnx.from_torch(
        network(),
        torch.from_numpy(x[:4]),
        nn.CrossEntropyLoss(),
        example_labels=torch.from_numpy(y[:4]),
    )
    return popdist_onnx.Trainer(
        model,
        optimizer=optimizer,
        learning_rate=RATE,
        batch_size=GLOBAL_BATCH // parts // instances,
        accumulation=parts,
    )


def streamed():
    x, y = samples()
    for start in range(0, SAMPLES, 5):
        yield x[start : start + 5], y[start : start + 5]


KINDS = {
    "arrays": samples,
    "a list": lambda: [list(zip(*samples(), strict=True))],
    "an iterable": lambda: [streamed],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("parts", [1, 4])
def test_the_last_samples_are_trained_as_by_torch(kind, optimizer, parts):
    weights, losses = by_torch(optimizer)
    trainer = made(optimizer, parts)
    history = trainer.fit(*KINDS[kind](), epochs=EPOCHS, shuffle=False)
    for name, wanted in weights.items():
        np.testing.assert_allclose(trainer.weights[name], wanted, atol=2e-6, err_msg=name)
    np.testing.assert_allclose(history, losses, rtol=1e-6)


def test_they_are_left_out_where_the_program_says_so():
    trainer, whole = made(), made()
    trainer.fit(*samples(), epochs=EPOCHS, shuffle=False, drop_last=True)
    kept = SAMPLES - SAMPLES % GLOBAL_BATCH
    whole.fit(*(one[:kept] for one in samples()), epochs=EPOCHS, shuffle=False)
    for name, array in trainer.weights.items():
        np.testing.assert_array_equal(array, whole.weights[name], err_msg=name)


class Middle(popdist_onnx.Callback):
    """Writes a checkpoint after an update."""

    def __init__(self, path, update):
        self.path, self.update = path, update

    def on_update_end(self, trainer, update, loss):
        del loss
        if update == self.update:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("update", [1, 2, 3])
def test_a_training_resumes_before_and_after_a_smaller_update(tmp_path, update):
    straight = made("adam", 2)
    wanted = straight.fit(
        *samples(), epochs=EPOCHS, callbacks=[Middle(tmp_path / "middle.onnx", update)]
    )
    resumed = made("adam", 2)
    resumed.resume(tmp_path / "middle.onnx")
    resumed.fit(*samples(), epochs=EPOCHS - len(resumed.history))
    for name, array in straight.weights.items():
        np.testing.assert_array_equal(resumed.weights[name], array, err_msg=name)
    np.testing.assert_allclose(list(resumed.history)[-1], list(wanted)[-1], rtol=1e-12)


def test_dropout_goes_on_after_a_smaller_update():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(FEATURES, 64), nn.Dropout(0.5), nn.Linear(64, CLASSES))
    model = popdist_onnx.from_torch(module, torch.randn(4, FEATURES), "cross_entropy")
    trainer = popdist_onnx.Trainer(model, batch_size=GLOBAL_BATCH)
    x, y = samples()
    trainer.fit(x, np.abs(y) % CLASSES, epochs=2)
    # Two whole updates and a smaller one in each epoch, of one micro-batch each.
    assert trainer.session.prepared_engine("test").micro_batches == 6


def test_a_file_with_a_fixed_batch_leaves_them_out_and_says_so(caplog):
    trainer = popdist_onnx.Trainer(exported(network(), batch=8), batch_size=8)
    x, y = samples()
    with caplog.at_level(logging.WARNING, "popdist.onnx"):
        trainer.fit(x, np.abs(y) % CLASSES)
    assert "the last 6 of 22 samples of each epoch are not trained" in caplog.text
