"""Linear models of ai.onnx.ml compute what ONNX Runtime's kernels do, and train as in torch."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser

import popdist_onnx

ROWS, BATCH, RATE, EPOCHS = 16, 4, 0.1, 2
HEAD = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1], producer_name: "skl2onnx">'
FACTORS = [[0.5, -1.0, 0.25], [1.0, 0.5, -0.5]]
SHIFTS = [0.1, -0.2]
_SAID = f"coefficients = {[*FACTORS[0], *FACTORS[1]]}, intercepts = {SHIFTS}"


def regressor(kind="float", said=f"{_SAID}, targets = 2"):
    return parser.parse_model(
        f"{HEAD} g ({kind}[N, 3] x) => (float[N, 2] y)"
        f" {{ y = ai.onnx.ml.LinearRegressor <{said}> (x) }}"
    )


def classifier(transform, *, normalized=False, classes="0, 1"):
    made = "s" if normalized else "y"
    rest = 'y = ai.onnx.ml.Normalizer <norm = "L1"> (s)' if normalized else ""
    return parser.parse_model(
        f"{HEAD} g (float[N, 3] x) => (int64[N] label, float[N, 2] y)"
        f" {{ label, {made} = ai.onnx.ml.LinearClassifier <classlabels_ints = [{classes}],"
        f' post_transform = "{transform}", {_SAID}> (x) {rest} }}'
    )


def data(kind=np.float32):
    numbers = np.random.default_rng(0)
    x = (3 * numbers.normal(size=(ROWS, 3))).astype(kind)
    return x, (x[:, 0] > x[:, 1]).astype(np.int64), numbers.normal(size=(ROWS, 2)).astype("f4")


MODELS = {
    "regressor": (regressor(), np.float32),
    "regressor of whole numbers": (regressor("int64"), np.int64),
    "scores": (classifier("NONE"), np.float32),
    "softmax": (classifier("SOFTMAX", normalized=True), np.float32),
    "sigmoid": (classifier("LOGISTIC"), np.float32),
}


def outputs(proto, x):
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, {"x": x})


@pytest.mark.parametrize("name", MODELS)
def test_a_linear_model_computes_what_the_kernel_does(name, tmp_path):
    proto, kind = MODELS[name]
    x = data(kind)[0]
    # ONNX Runtime has no kernel for whole numbers.
    wanted = outputs(proto if kind == np.float32 else regressor(), x.astype(np.float32))
    trainer = popdist_onnx.Trainer(proto, loss="mse", optimizer="sgd", batch_size=BATCH)
    assert set(trainer.trained) == {"coefficients", "intercepts"}
    trainer.save(tmp_path / "saved.onnx")
    saved = outputs(onnx.load(tmp_path / "saved.onnx"), x)
    for found, expected in zip(saved, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trainer.predict(x), wanted[-1], rtol=1e-5, atol=1e-6)


def by_torch(name, x, labels, batch):
    factors, shifts = (torch.tensor(one, dtype=torch.float64) for one in (FACTORS, SHIFTS))
    weights = [factors.requires_grad_(), shifts.requires_grad_()]
    rule = torch.optim.SGD(weights, RATE)
    for start in EPOCHS * list(range(0, len(x), batch)):
        rows = slice(start, start + batch)
        scores = torch.tensor(x[rows]).double() @ factors.T + shifts
        wanted = torch.tensor(labels[rows])
        rule.zero_grad()
        if name == "sigmoid":
            torch.nn.functional.mse_loss(torch.sigmoid(scores), wanted.double()).backward()
        elif "regressor" in name:
            torch.nn.functional.mse_loss(scores, wanted.double()).backward()
        else:
            torch.nn.functional.cross_entropy(scores, wanted).backward()
        rule.step()
    return [one.detach().numpy() for one in weights]


@pytest.mark.parametrize("name", MODELS)
def test_a_linear_model_trains_as_in_torch(name):
    proto, kind = MODELS[name]
    x, classes, wanted = data(kind)
    squared = "regressor" in name or name == "sigmoid"
    labels = wanted if squared else classes
    trainer = popdist_onnx.train(
        proto,
        x,
        labels,
        loss="mse" if squared else "cross_entropy",
        optimizer="sgd",
        learning_rate=RATE,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
    )
    for weight, expected in zip(
        ("coefficients", "intercepts"), by_torch(name, x, labels, BATCH), strict=True
    ):
        np.testing.assert_allclose(trainer.weights[weight], expected, rtol=1e-4, atol=1e-5)


def test_operators_that_stay_as_they_are_are_named():
    kept = regressor(said=f'{_SAID}, targets = 2, post_transform = "PROBIT"')
    trees = parser.parse_model(
        f"{HEAD} g (float[N, 3] x) => (float[N, 1] y)"
        " { y = ai.onnx.ml.TreeEnsembleRegressor (x) }"
    )
    for proto, operator in ((kept, "LinearRegressor"), (trees, "TreeEnsembleRegressor")):
        with pytest.raises(popdist_onnx.popart_exception, match="PD579") as caught:
            popdist_onnx.Trainer(proto, loss="mse", optimizer="sgd", batch_size=BATCH)
        assert "shape of output y is not known" in str(caught.value)
        assert f"{operator} of ai.onnx.ml hold their coefficients" in str(caught.value)
