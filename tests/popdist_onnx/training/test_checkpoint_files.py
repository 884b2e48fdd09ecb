"""Checkpoints and saved files are models: for inference, for torch, and to train again."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import popdist_onnx

ROWS, CLASSES = 16, 3
_NUMBERS = np.random.default_rng(0)
X = _NUMBERS.normal(size=(ROWS, 4)).astype(np.float32)
CHOSEN = _NUMBERS.integers(0, CLASSES, ROWS)
PADDED = np.where(np.arange(ROWS) < 5, -100, CHOSEN)
RATE = 0.1


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))


def exported(loss, labels):
    """The network with a loss that is rewritten, or one that `Trainer` adds."""
    examples = {} if isinstance(loss, str) else {"example_labels": torch.tensor(labels)}
    return popdist_onnx.from_torch(network(), torch.tensor(X), loss, **examples)


def trainer(model, optimizer="momentum", parts=4):
    return popdist_onnx.Trainer(
        model,
        optimizer=optimizer,
        learning_rate=RATE,
        batch_size=ROWS // parts,
        accumulation=parts,
    )


@pytest.mark.parametrize(
    ("loss", "labels"), [(nn.CrossEntropyLoss(), PADDED), ("cross_entropy", CHOSEN)], ids=type
)
def test_a_checkpoint_is_a_model_with_the_trained_weights(loss, labels, tmp_path):
    path = tmp_path / "epoch.onnx"
    given = exported(loss, labels)
    first = trainer(given)
    first.fit(X, labels, shuffle=False)
    first.save_checkpoint(path)
    weights = first.weights
    onnx.checker.check_model(path, full_check=True)

    wanted = [one.name for one in given.graph.input]
    inference = onnxruntime.InferenceSession(path)
    assert [one.name for one in inference.get_inputs()] == wanted
    fed = {name: labels if name == "labels" else X for name in wanted}
    (outputs,) = inference.run(["output"], fed)
    module = popdist_onnx.to_torch(path, network())
    reference = copy.deepcopy(module)
    np.testing.assert_allclose(reference(torch.tensor(X)).detach(), outputs, atol=1e-6)

    # One step of SGD from its weights, on the whole batch: no momentum is left of the first job.
    again = trainer(path, "sgd", parts=1)
    for name, weight in weights.items():
        np.testing.assert_array_equal(again.weights[name], weight)
    again.fit(X, labels, shuffle=False)
    reference = copy.deepcopy(module).double()
    nn.functional.cross_entropy(
        reference(torch.tensor(X).double()), torch.tensor(labels)
    ).backward()
    for name, weight in reference.named_parameters():
        stepped = (weight - RATE * weight.grad).detach().numpy()
        np.testing.assert_allclose(again.weights[name], stepped, atol=1e-5)

    # With `resume` a trainer of the file goes on as the first one does.
    resumed = trainer(path)
    resumed.resume(path)
    for one in (first, resumed):
        one.fit(X, labels, epochs=2)
    for name, weight in first.weights.items():
        np.testing.assert_array_equal(resumed.weights[name], weight)
    assert list(resumed.history) == list(first.history)
    assert not any(name.startswith("Accl") for name in resumed.weights)


class Twice(nn.Module):
    """Layers that differ for inference; normalisation is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, CLASSES)
        self.normal, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x):
        once = torch.tanh(self.normal(self.first(x)))
        return self.last(self.drop(self.normal(once)))


@pytest.mark.parametrize("own", [False, True], ids=["a named loss", "a loss of the model"])
def test_a_module_exported_in_training_mode_is_measured_and_saved_for_inference(
    own, tmp_path, caplog
):
    torch.manual_seed(0)
    example = {"example_labels": torch.tensor(CHOSEN)} if own else {}
    loss = nn.CrossEntropyLoss() if own else "cross_entropy"
    made = popdist_onnx.from_torch(Twice(), torch.tensor(X), loss, **example)
    first = trainer(made)
    first.fit(X, CHOSEN, epochs=3)
    module = popdist_onnx.to_torch(first, Twice()).eval()
    wanted = module(torch.tensor(X)).detach()
    np.testing.assert_allclose(first.predict(X), wanted, atol=1e-6)
    value = nn.functional.cross_entropy(wanted, torch.tensor(CHOSEN)).item()
    assert first.evaluate(X, CHOSEN)["loss"] == pytest.approx(value, rel=1e-5)

    def inferred(path):
        session = onnxruntime.InferenceSession(path)
        fed = {"x": X, "labels": CHOSEN} if own else {"x": X}
        return session.run(["output"], fed)[0]

    first.save(tmp_path / "kept.onnx")
    assert "BatchNormalization and Dropout in training mode" in caplog.text
    caplog.clear()
    first.save(tmp_path / "inference.onnx", inference=True)
    onnx.checker.check_model(tmp_path / "inference.onnx", full_check=True)
    np.testing.assert_allclose(inferred(tmp_path / "inference.onnx"), wanted, atol=1e-6)
    first.save(tmp_path / "training.onnx", inference=False)
    assert not caplog.text
    for name in ("kept", "training"):
        assert np.abs(inferred(tmp_path / f"{name}.onnx") - wanted.numpy()).max() > 1e-2
