"""Recurrent layers in files of tf2onnx, which have one bias in Keras, train as torch says."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser

import popdist_onnx
from popdist_onnx.training.model import trainable, with_batch

STEPS, WIDTH, HIDDEN, ROWS = 3, 2, 4, 16
RATE, EPOCHS = 0.2, 2
GATES = {"LSTM": 4, "GRU": 3}
ORDER = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2]}
"""The gates of ONNX, by where ONNX has torch's: input, forget, cell, output; reset, update, new."""


def weights(kind):
    """Kernels, and biases of which the second half is zeros, in the order of ONNX."""
    rng = np.random.default_rng(2)
    rows = GATES[kind] * HIDDEN
    shapes = {"W": (1, rows, WIDTH), "R": (1, rows, HIDDEN), "B": (1, 2 * rows), "K": (HIDDEN, 2)}
    made = {name: 0.5 * rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    made["B"][:, rows:] = 0
    return made


def model(kind="LSTM", producer="tf2onnx"):
    """A file as tf2onnx writes one."""
    after = ", linear_before_reset = 1" if kind == "GRU" else ""
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13]> g (float[N, {STEPS}, {WIDTH}] x)'
        " => (float[N, 2] y) <int64[1] one = {1}, int64[1] zero = {0}> {"
        " t = Transpose<perm = [1, 0, 2]>(x)"
        f" all, last = {kind}<hidden_size = {HIDDEN}{after}>(t, W, R, B)"
        " state = Squeeze(last, zero) y = MatMul(state, K) }"
    )
    proto.graph.initializer.extend(
        numpy_helper.from_array(content, name) for name, content in weights(kind).items()
    )
    proto.producer_name = producer
    return proto


def samples():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, STEPS, WIDTH)).astype(np.float32)
    return x, x[:, -1] ** 2


def by_torch(kind="LSTM", batch=ROWS, *, both=False):
    """The weights after all epochs, in the order of ONNX; by default with one bias that trains."""
    stored, rows = weights(kind), GATES[kind] * HIDDEN

    def reordered(content, order):
        gates = content.reshape(GATES[kind], HIDDEN, -1)[order]
        return gates.reshape(content.shape)

    def of_torch(content):
        return torch.tensor(reordered(content, np.argsort(ORDER[kind]))).double()

    body = (torch.nn.LSTM if kind == "LSTM" else torch.nn.GRU)(WIDTH, HIDDEN, batch_first=True)
    body = body.double()
    biases = stored["B"][0]
    given = (stored["W"][0], stored["R"][0], biases[:rows], biases[rows:])
    with torch.no_grad():
        for weight, content in zip(body.parameters(), given, strict=True):
            weight.copy_(of_torch(content))
    head = torch.tensor(stored["K"]).double().requires_grad_()
    body.bias_hh_l0.requires_grad_(both)
    rule = torch.optim.SGD([one for one in body.parameters() if one.requires_grad] + [head], RATE)
    x, y = (torch.tensor(one).double() for one in samples())
    for start in EPOCHS * list(range(0, ROWS, batch)):
        rows_of = slice(start, start + batch)
        rule.zero_grad()
        out = body(x[rows_of])[0][:, -1] @ head
        torch.nn.functional.mse_loss(out, y[rows_of]).backward()
        rule.step()
    w, r, first, second = (
        reordered(one.detach().numpy(), ORDER[kind]) for one in body.parameters()
    )
    trained = {"W": w[None], "R": r[None], "B": np.concatenate([first, second])[None]}
    return trained | {"K": head.detach().numpy()}


def trained(proto, batch=ROWS):
    trainer = popdist_onnx.Trainer(
        proto, loss="mse", optimizer="sgd", learning_rate=RATE, batch_size=batch
    )
    trainer.fit(*samples(), epochs=EPOCHS, shuffle=False)
    return trainer


@pytest.mark.parametrize(
    ("kind", "producer", "both"),
    [("LSTM", "tf2onnx", False), ("LSTM", "another", True), ("GRU", "tf2onnx", True)],
)
def test_the_bias_of_keras_trains_once(kind, producer, both, tmp_path, caplog):
    """A GRU of Keras that resets after its product has both biases, as torch has."""
    trainer = trained(model(kind, producer))
    for name, wanted in by_torch(kind, both=both).items():
        np.testing.assert_allclose(trainer.weights[name], wanted, atol=1e-6, err_msg=name)
    assert "twice as fast" not in caplog.text
    trainer.save(tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx")
    assert [one.op_type for one in saved.graph.node] == ["Transpose", kind, "Squeeze", "MatMul"]
    assert trained(saved).weights.keys() == trainer.weights.keys()


def test_a_session_of_such_a_file_warns_of_the_second_bias(caplog):
    prepared, loss, _ = trainable(with_batch(ir.from_proto(model()), ROWS), "mse")
    popdist_onnx.TrainingSession(
        prepared,
        popdist_onnx.DataFlow(1, {loss: popdist_onnx.AnchorReturnType("All")}),
        loss,
        popdist_onnx.SGD({"defaultLearningRate": (0.1, False)}),
        popdist_onnx.DeviceManager().createCpuDevice(),
    )
    assert "twice as fast" in caplog.text
