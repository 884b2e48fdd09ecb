"""What `fit` can do beside updates: data of every kind, measurements, callbacks, checkpoints."""

import numpy as np
import pytest
import torch
from torch import nn

import popdist_onnx
from tests.popdist_onnx.training.test_trainer import BATCH, SAMPLES, data, exported, network, sgd


def trainer(**settings):
    return popdist_onnx.Trainer(exported(network()), optimizer=sgd(), batch_size=BATCH, **settings)


def same_weights(one, other, atol=0.0):
    assert one.weights.keys() == other.weights.keys()
    for name, array in one.weights.items():
        np.testing.assert_allclose(array, other.weights[name], rtol=0, atol=atol)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x, y = data()
        return torch.from_numpy(x[index]), int(y[index])


def odd_batches():
    x, y = data()
    for rows in np.split(np.arange(SAMPLES), [5, 6, 20]):
        yield {"x": x[rows], "labels": y[rows]}


def single_samples():
    yield from zip(*data(), strict=True)


def tf_dataset():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices(data()).batch(7)


@pytest.mark.parametrize(
    "make",
    [
        Samples,
        lambda: torch.utils.data.DataLoader(Samples(), batch_size=5),
        lambda: odd_batches,
        lambda: list(odd_batches()).__iter__,
        lambda: single_samples,
        tf_dataset,
        lambda: list(single_samples()),
        lambda: [{"x": x, "labels": y} for x, y in single_samples()],
        lambda: list(odd_batches()),
        data,
    ],
    ids=[
        "dataset",
        "loader",
        "batches of any size",
        "an iterator's maker",
        "samples",
        "tf.data",
        "a list of samples",
        "a list of dictionaries",
        "a list of batches",
        "a tuple of both arrays",
    ],
)
def test_all_kinds_of_data_train_alike(make):
    """Arrays, of which other tests show that they train as torch does, are the measure."""
    wanted, found = trainer(), trainer()
    expected = wanted.fit(*data(), epochs=2, shuffle=False, validation=data())
    history = found.fit(make(), epochs=2, shuffle=False, validation=make())
    np.testing.assert_array_equal(history, expected)
    np.testing.assert_allclose(history.of("val_loss"), expected.of("val_loss"), rtol=1e-12)
    same_weights(found, wanted)


def test_data_that_cannot_be_used():
    made = trainer()
    for given, epochs, what in (
        (single_samples(), 2, "an iterator can be gone through once only"),
        ((one for one in ()), 1, "ended before there was an update"),
        (lambda: iter([(1, 2, 3)]), 1, "another number of parts"),
        (3, 1, "not data to train with"),
        ("mnist", 1, "the data are a text"),
    ):
        with pytest.raises(popdist_onnx.popart_exception, match=what):
            made.fit(given, epochs=epochs)
    x, y = data()
    with pytest.raises(popdist_onnx.popart_exception, match="several inputs come by their ids"):
        made.fit((x, x), y)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"lr": 0.1}, "there is no setting lr.*did you mean learning_rate"),
        ({"loss": nn.functional.cross_entropy}, "the loss of a training is a name.*from_torch"),
        ({"freeze": [1]}, "freeze takes names"),
        ({"callbacks": [3]}, "this is not a callback"),
        ({"callbacks": object()}, "this is not a callback"),
        ({"schedule": "cosine"}, "a schedule is a function"),
    ],
)
def test_settings_of_other_libraries(settings, what):
    with pytest.raises(popdist_onnx.popart_exception, match=f"(?s){what}"):
        popdist_onnx.train(exported(network()), *data(), batch_size=BATCH, **settings)


def test_a_module_and_a_function_are_no_model_yet():
    with pytest.raises(popdist_onnx.popart_exception, match=r"(?s)not a model of ONNX.*from_torch"):
        popdist_onnx.train(network(), *data())
    with pytest.raises(popdist_onnx.popart_exception, match=r"takes a torch\.nn\.Module"):
        popdist_onnx.from_torch(lambda x: x, torch.ones(2, 4))


def test_measurements_on_validation_data_are_those_of_torch():
    x, y = data()
    x, y = x[:21], y[:21]
    model = network()
    made = trainer(metrics=["accuracy"])
    with torch.no_grad():
        scores = model.double()(torch.from_numpy(x).double())
        expected = nn.functional.cross_entropy(scores, torch.from_numpy(y)).item()
    found = made.evaluate(x, y)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-6)
    assert found["accuracy"] == (scores.argmax(1).numpy() == y).mean()
    history = made.fit(*data(), epochs=2, validation=(x, y))
    assert set(history.records[0]) == {"epoch", "loss", "learning_rate", "val_loss", "val_accuracy"}
    after = made.evaluate(x, y)
    assert history.of("val_loss")[-1] == after["loss"] < found["loss"]
    own = trainer(metrics={"largest": lambda outputs, _labels: outputs.max(1)})
    assert own.evaluate(x, y)["largest"] == pytest.approx(scores.max(1).values.mean().item(), 1e-6)


def test_a_schedule_and_clipping_train_as_in_torch():
    x, y = data()
    rates = [0.3 / (1 + update) for update in range(2 * SAMPLES // BATCH)]
    made = popdist_onnx.Trainer(
        exported(network()), optimizer="momentum", batch_size=BATCH, clip_norm=0.05
    )
    history = made.fit(x, y, epochs=2, shuffle=False, schedule=rates.__getitem__)
    assert history.of("learning_rate") == pytest.approx([rates[SAMPLES // BATCH - 1], rates[-1]])
    model = network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    rows = torch.from_numpy(x).double().reshape(-1, BATCH, x.shape[1])
    for rate, (batch, labels) in zip(
        rates, 2 * list(zip(rows, torch.from_numpy(y).reshape(-1, BATCH), strict=True)), strict=True
    ):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), labels).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        assert norm > 0.05
        optimizer.step()
    with torch.no_grad():
        wanted = model(torch.from_numpy(x).double())
    np.testing.assert_allclose(made.predict(x), wanted, rtol=0, atol=1e-5)


def test_frozen_weights_stay_and_are_named():
    made = trainer(freeze=["0.*"])
    before = made.weights
    made.fit(*data(), epochs=1)
    after = made.weights
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == set(made.trained) == {"2.weight", "2.bias"}
    with pytest.raises(popdist_onnx.popart_exception, match=r"no weight is called 'head\.\*'"):
        trainer(freeze="head.*")


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_resumed_training_goes_on_exactly(tmp_path, optimizer):
    def make():
        return popdist_onnx.Trainer(exported(network()), optimizer=optimizer, batch_size=BATCH)

    whole, first = make(), make()
    expected = whole.fit(*data(), epochs=4)
    first.fit(*data(), epochs=2, callbacks=[popdist_onnx.Checkpoint(tmp_path / "c.onnx")])
    second = make()
    second.resume(tmp_path / "c.onnx")
    second.fit(*data(), epochs=2)
    assert second.history == expected == whole.history
    same_weights(second, whole)
    whole.save(tmp_path / "plain.onnx")
    for path, what in (("plain.onnx", "is no checkpoint"), ("none.onnx", "there is no such file")):
        with pytest.raises(popdist_onnx.popart_exception, match=what):
            second.resume(tmp_path / path)
    other = "adam" if optimizer == "momentum" else "momentum"
    stranger = popdist_onnx.Trainer(exported(network()), optimizer=other, batch_size=BATCH)
    with pytest.raises(popdist_onnx.popart_exception, match=r"checkpoint has no|no tensor"):
        stranger.resume(tmp_path / "c.onnx")


class Middle(popdist_onnx.Callback):
    """Writes a checkpoint after one update in the middle of an epoch."""

    def __init__(self, path, update):
        self.path, self.update = path, update

    def on_update_end(self, trainer, update, loss):
        del loss
        if update == self.update:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("make_data", [data, lambda: (odd_batches,)], ids=["drawn", "streamed"])
def test_a_checkpoint_in_the_middle_of_an_epoch_goes_on_with_its_other_samples(tmp_path, make_data):
    def make():
        return popdist_onnx.Trainer(exported(network()), optimizer="adam", batch_size=BATCH)

    def rate(update):
        return 0.01 / (1 + update)

    updates = SAMPLES // BATCH
    assert updates >= 3
    for after in (updates + 1, 2 * updates - 1):  # within the second epoch, and at its end
        whole, second = make(), make()
        middle = Middle(tmp_path / "c.onnx", after)
        whole.fit(*make_data(), epochs=3, schedule=rate, callbacks=[middle])
        second.resume(tmp_path / "c.onnx")
        second.fit(*make_data(), epochs=2, schedule=rate)
        assert second.history == whole.history
        same_weights(second, whole)


def test_early_stopping_takes_the_best_weights_back():
    seen = []

    def worse(made, record):
        seen.append(made.weights)
        record["val_loss"] = 0.0

    stopping = popdist_onnx.EarlyStopping("val_loss", patience=2)
    made = trainer()
    x, y = data()
    # The validation data are what training moves away from: each epoch is worse than the last.
    history = made.fit(x, y, epochs=9, validation=(x, (y + 1) % 3), callbacks=[worse, stopping])
    losses = history.of("val_loss")
    best = int(np.argmin(losses))
    assert len(history) == best + 3 < 9
    for name, array in made.weights.items():
        np.testing.assert_array_equal(array, seen[best][name])
    with pytest.raises(popdist_onnx.popart_exception, match="which is not measured"):
        trainer().fit(x, y, callbacks=[popdist_onnx.EarlyStopping()])


def test_data_that_are_no_numbers_stop_the_training_by_name():
    x, y = data()
    x[3, 2] = np.nan
    with pytest.raises(popdist_onnx.popart_exception, match="Tensor x is not finite: it came into"):
        trainer().fit(x, y, shuffle=False)


def test_a_training_that_diverges_names_the_first_bad_tensor():
    builder = popdist_onnx.Builder()
    x = builder.addInputTensor("FLOAT", [BATCH, 2], "x")
    w = builder.addInitializedInputTensor(np.full((2, 3), 50, np.float32), "w")
    scores = builder.aiOnnx.matmul([x, w])
    builder.addOutputTensor(builder.aiOnnx.exp([scores], "grown"))
    made = popdist_onnx.Trainer(builder.getModelProto(), loss="mse", batch_size=BATCH)
    with pytest.raises(popdist_onnx.popart_exception, match=r"grown.*made by Exp"):
        made.fit(np.full((BATCH, 2), 1.0, np.float32), np.zeros((BATCH, 3), np.float32))
