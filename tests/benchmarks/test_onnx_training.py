"""The benchmark of ONNX steps: what its limit is made of, and what its rows say of absent peers."""

import sys
import time

import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.onnx_training import comparison
from benchmarks.onnx_training.job import COMPILED, ONNX, PRODUCTS, TORCH
from benchmarks.onnx_training.ort_training import _complete
from benchmarks.onnx_training.products import Product, products_of, products_step
from benchmarks.onnx_training.turns import Contender, require_agreement, take_turns
from benchmarks.sampling import MeasurementError, Missing, Samples


@pytest.fixture
def perceptron(tmp_path):
    """8 samples of 6 numbers, 5 hidden units, 3 classes; the first weight is stored transposed."""
    weights = {"w0": [5, 6], "w1": [5, 3]}
    nodes = [
        helper.make_node("Transpose", ["w0"], ["w0t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "w0t"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 6]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, [8]),
        ],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [
            helper.make_tensor(name, TensorProto.FLOAT, shape, [0.1] * shape[0] * shape[1])
            for name, shape in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "perceptron.onnx")
    return tmp_path / "perceptron.onnx"


def test_the_limit_has_each_product_of_a_step(perceptron):
    found = sorted(products_of(str(perceptron), 0.1))
    # Forward twice, the gradient of each weight, and that of the hidden units.
    assert [one.batch for one in found] == [1] * 5
    multiplications = sorted(one.rows * one.inner * one.columns for one in found)
    assert multiplications == [8 * 5 * 3] * 3 + [8 * 6 * 5] * 2
    step = products_step([*found, Product(4, 3, 5, 2), Product(4, 3, 5, 2)], threads=1)
    assert step() == 0.0


def test_the_limit_has_the_products_of_every_step_of_a_loop(tmp_path):
    steps, samples, inputs, hidden = 7, 2, 3, 4
    graph = helper.make_graph(
        [
            helper.make_node("RNN", ["x", "w", "r"], ["", "last"], hidden_size=hidden),
            helper.make_node("ReduceSum", ["last"], ["loss"], keepdims=0),
        ],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, samples, inputs])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [
            helper.make_tensor(name, TensorProto.FLOAT, [1, hidden, of], [0.1] * hidden * of)
            for name, of in (("w", inputs), ("r", hidden))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "recurrent.onnx")
    found = products_of(str(tmp_path / "recurrent.onnx"), 0.1)
    # The backward pass takes the state's gradient through the weights once for each step.
    assert found.count(Product(1, samples, hidden, hidden)) == steps


def test_the_peer_gets_the_outputs_that_its_gradients_read():
    graph = helper.make_graph(
        [
            helper.make_node("LayerNormalization", ["x", "s"], ["n"]),
            helper.make_node("SoftmaxCrossEntropyLoss", ["n", "labels"], ["loss"]),
        ],
        "g",
        [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, [2, 3])],
    )
    normalization, loss = _complete(helper.make_model(graph)).graph.node
    assert len(normalization.output) == 3
    assert len(loss.output) == 2


def test_losses_that_differ_in_the_fifth_digit_are_an_error():
    require_agreement({"one": [2.30000, 2.0], "other": [2.30001, 2.01]}, 1e-2)
    with pytest.raises(MeasurementError, match="losses differ"):
        require_agreement({"one": [2.3000, 2.0], "other": [2.3001, 2.0]}, 1e-2)
    with pytest.raises(MeasurementError, match="losses differ"):
        require_agreement({"one": [2.3, 2.0], "other": [2.3, 2.1]}, 1e-2)


_STEPS = """
import sys, threading, time
threading.Thread(target=lambda: [time.time() for _ in iter(int, 1)], daemon=True).start()
for line in sys.stdin:
    print(time.process_time(), 1.0, flush=True)
"""


def test_a_contender_that_polls_takes_no_processor_time_between_its_steps():
    with Contender([sys.executable, "-c", _STEPS], {}) as polling:
        (before, _), (first, _) = polling.steps(2)
        time.sleep(0.5)
        ((after, _),) = polling.steps(1)
    assert before <= first <= after < first + 0.4


def test_a_peer_that_takes_no_step_is_missing_with_its_last_words():
    fine = [sys.executable, "-c", _STEPS]
    ends = [sys.executable, "-c", "raise SystemExit('no such operator')"]
    times = take_turns({"ours": fine, "peer": ends}, {}, 1, 1e-5, without_loss="")
    assert isinstance(times["ours"], Samples)
    assert times["peer"] == Missing("no such operator")
    with pytest.raises(MeasurementError, match="no such operator"):
        take_turns({"ours": ends, "peer": fine}, {}, 1, 1e-5, without_loss="")


def test_each_peer_has_a_row_and_an_absent_one_says_how_to_get_it(monkeypatch, tmp_path):
    seconds = {ONNX: 0.009, TORCH: 0.010, COMPILED: 0.012, PRODUCTS: 0.008}
    times = {name: Samples((least,)) for name, least in seconds.items()}
    monkeypatch.setattr(comparison, "take_turns", lambda *_, **__: times)
    rows = list(comparison._step("mlp", tmp_path / "mlp.onnx", 1, 1))
    assert [row.peer for row in rows] == [
        "torch eager",
        "torch.compile",
        "onnxruntime-training",
        "matrix products alone",
    ]
    assert [row.met for row in rows] == [True, True, None, True]
    assert "make .venv-ort-training/.ready" in rows[2].note
    times[PRODUCTS] = Samples((0.0095,))  # more than 0.9 of torch eager's step
    rows = list(comparison._step("gpt2", tmp_path / "gpt2.onnx", 1, 1))
    assert [row.met for row in rows] == [None, True, None, True]
    assert rows[0].aim is None
    assert rows[3].aim is comparison._RESTATED_AIM
    assert comparison.peer_python(tmp_path) is None
