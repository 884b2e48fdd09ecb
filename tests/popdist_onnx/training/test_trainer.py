"""The front door: it trains as plain torch does, and what it saves is the model that was given."""

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import popdist_onnx
from popdist_onnx.graph.untie import untie
from popdist_onnx.training.batches import indices
from popdist_onnx.training.job import Job

SAMPLES, FEATURES, CLASSES, BATCH = 48, 6, 3, 8


def network(*, batchnorm=False):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(16)] if batchnorm else []
    layers = [nn.Linear(FEATURES, 16), nn.Tanh(), *middle, nn.Linear(16, CLASSES)]
    return nn.Sequential(*layers)


def exported(model, *, batch="batch"):
    file = io.BytesIO()
    axes = {"x": {0: batch}, "y": {0: batch}} if isinstance(batch, str) else None
    rows = 1 if isinstance(batch, str) else batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            (torch.zeros(rows, FEATURES),),
            file,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=axes,
            dynamo=False,
        )
    return file.getvalue()


def data(kind="classes"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    if kind == "classes":
        return x, x[:, :CLASSES].argmax(1)
    return x, x[:, :CLASSES] ** 2


def sgd(rate=0.1):
    return popdist_onnx.SGD({"defaultLearningRate": (rate, False)})


@pytest.mark.parametrize(
    ("loss", "criterion"),
    [("cross_entropy", nn.CrossEntropyLoss()), ("mse", nn.MSELoss())],
    ids=["cross entropy", "mse"],
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_weights_are_those_of_plain_torch(loss, criterion, accumulation):
    x, y = data("classes" if loss == "cross_entropy" else "numbers")
    model = network()
    trainer = popdist_onnx.Trainer(
        exported(model), loss=loss, optimizer=sgd(), batch_size=BATCH, accumulation=accumulation
    )
    history = trainer.fit(x, y, epochs=2, shuffle=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.from_numpy(x).reshape(-1, BATCH * accumulation, FEATURES)
    wanted = torch.from_numpy(y).reshape(len(rows), BATCH * accumulation, *y.shape[1:])
    expected = []
    for _ in range(2):
        losses = []
        for batch, target in zip(rows, wanted, strict=True):
            optimizer.zero_grad()
            value = criterion(model(batch), target)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        expected.append(np.mean(losses))
    np.testing.assert_allclose(history, expected, rtol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(trainer.predict(x), model(torch.from_numpy(x)), atol=1e-5)


def test_batch_norm_that_was_exported_for_inference_trains_as_in_torch():
    x, y = data()
    model = network(batchnorm=True)
    trainer = popdist_onnx.Trainer(exported(model), optimizer=sgd(), batch_size=BATCH)
    history = trainer.fit(x, y, epochs=3, shuffle=False)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    for _ in range(3):
        losses = []
        for start in range(0, SAMPLES, BATCH):
            batch, target = (torch.from_numpy(a[start : start + BATCH]) for a in (x, y))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        expected.append(np.mean(losses))
    np.testing.assert_allclose(history, expected, rtol=1e-5)


def test_what_is_saved_is_the_given_model_with_other_weights(tmp_path):
    x, y = data()
    given = exported(network(batchnorm=True))
    trainer = popdist_onnx.train(given, x, y, epochs=8, optimizer=sgd(), batch_size=BATCH)
    trainer.save(tmp_path / "trained.onnx")
    before, after = onnx.load_from_string(given), onnx.load(tmp_path / "trained.onnx")
    # What the exporter wrote once because it began with equal content is several weights again.
    before = untie(before)
    assert list(before.graph.node) == list(after.graph.node)
    assert [t.name for t in before.graph.initializer] == [t.name for t in after.graph.initializer]
    (alone,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x[:5]})
    np.testing.assert_allclose(alone, trainer.predict(x[:5]), atol=1e-6)
    assert (trainer.predict(x).argmax(1) == y).mean() > 0.8


def test_every_sample_of_the_whole_batches_is_taken_once_by_one_replica():
    jobs = [Job(0, 2, 3, first=True), Job(2, 1, 3, first=False)]
    taken = [
        np.concatenate(
            [i.reshape(-1) for i in indices(50, batch=4, accumulation=2, job=job, order=(1, 2))]
        )
        for job in jobs
    ]
    together = np.concatenate(taken)
    assert len(together) == 48
    assert len(set(together)) == 48
    again = list(indices(50, batch=4, accumulation=2, job=jobs[1], order=(1, 3)))
    assert not np.array_equal(np.concatenate(again).reshape(-1), taken[1])


def test_what_cannot_be_trained_says_why():
    x, y = data()
    given = exported(network())
    with pytest.raises(popdist_onnx.popart_exception, match="there is no loss 'entropy'"):
        popdist_onnx.Trainer(given, loss="entropy")
    with pytest.raises(popdist_onnx.popart_exception, match="batches of another size"):
        popdist_onnx.Trainer(exported(network(), batch=4), batch_size=8)
    trainer = popdist_onnx.Trainer(given, batch_size=BATCH)
    with pytest.raises(popdist_onnx.popart_exception, match="smaller than one global batch"):
        trainer.fit(x[:4], y[:4])
    with pytest.raises(popdist_onnx.popart_exception, match="same number of samples"):
        trainer.fit(x, y[:4])
    with pytest.raises(popdist_onnx.popart_exception, match="not those of the model's inputs"):
        trainer.fit({"z": x}, y)
    with pytest.raises(popdist_onnx.popart_exception, match="Type discrepancy for tensor x"):
        trainer.fit(x.astype(np.float64), y)
