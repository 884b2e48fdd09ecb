"""Gradients are summed over micro-batches, and updates read the sum."""

import numpy as np
import pytest

from popdist_onnx.graph import names
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.optimizers.values import UpdateError
from popdist_onnx.transforms.accumulate import accumulate, updaters
from popdist_onnx.transforms.optimizer import grow_updates
from popdist_onnx.types.enums import ReductionType
from popdist_onnx.types.tensor_info import DataType
from tests.popdist_onnx.optimizers.graphs import Loop, gradient_graph

WEIGHTS = {"w": np.arange(6.0).reshape(2, 3), "b": np.ones(3)}
RATE = {"defaultLearningRate": (0.5, True)}


def micro_batches(count):
    rng = np.random.default_rng(3)
    return [
        {f"grad_{k}": rng.normal(size=v.shape) for k, v in WEIGHTS.items()} for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("reduction", "divisor"), [(ReductionType.Sum, 1), (ReductionType.Mean, 3)]
)
@pytest.mark.parametrize("settings", [RATE, RATE | {"lossScaling": (16.0, False)}])
def test_an_update_reads_the_sum(reduction, divisor, settings):
    optimizer = SGD(settings)
    model = accumulate(gradient_graph(WEIGHTS), 3)
    loop = Loop(grow_updates(model, optimizer, reduction, accumulation=3), optimizer)
    fed = micro_batches(3)
    for number, gradients in enumerate(fed):
        loop.step(**gradients)
        if number < 2:
            # One graph runs both parts here; only the last micro-batch's update counts.
            loop.states |= WEIGHTS
    for name, weight in WEIGHTS.items():
        total = sum(gradients[f"grad_{name}"] for gradients in fed)
        np.testing.assert_allclose(loop[name], weight - 0.5 * total / divisor, rtol=1e-12)


def test_a_mean_over_replicas_scales_the_loss_gradient():
    optimizer = SGD(RATE | {"lossScaling": (8.0, True)})
    model = grow_updates(gradient_graph(WEIGHTS), optimizer, ReductionType.Mean, replicas=4)
    (fed,) = micro_batches(1)
    loop = Loop(model, optimizer).step(**fed)
    for name, weight in WEIGHTS.items():
        np.testing.assert_allclose(loop[name], weight - 0.5 / 4 * fed[f"grad_{name}"], rtol=1e-12)


def test_sums_are_made_right_behind_their_gradient():
    model = accumulate(gradient_graph(WEIGHTS), 2)
    order = [node.outputs[0].name for node in model.graph]
    assert order.index("UpdatedVar___Accum___w") == order.index("Gradient___w") + 1
    assert order.index("UpdatedVar___Accum___b") == order.index("Gradient___b") + 1


def test_only_what_follows_the_sums_runs_once_per_update():
    model = grow_updates(accumulate(gradient_graph(WEIGHTS), 2), SGD(RATE))
    phases = {node.outputs[0].name: node.metadata_props.get(names.PHASE) for node in model.graph}
    assert phases["UpdatedVar___Accum___w"] is None
    assert phases["FinalReducedGradient___w"] == "update"
    assert phases["UpdatedVar___w"] == "update"
    assert {w: v.name for w, v in updaters(model).items()} == {
        "w": "FinalReducedGradient___w",
        "b": "FinalReducedGradient___b",
    }


@pytest.mark.parametrize("kept_as", [DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16])
def test_sums_are_kept_in_the_type_asked_for(kept_as):
    halves = {name: value.astype(np.float16) for name, value in WEIGHTS.items()}
    model = accumulate(gradient_graph(halves), 2, kept_as)
    assert model.graph.initializers["Accum___w"].dtype.name == kept_as.name
    optimizer = SGD(RATE)
    loop = Loop(grow_updates(model, optimizer), optimizer)
    (fed,) = micro_batches(1)
    loop.step(**{name: value.astype(np.float16) for name, value in fed.items()})
    total = loop["Accum___w"].astype(np.float32)
    np.testing.assert_allclose(total, fed["grad_w"], rtol=1e-2)
    np.testing.assert_allclose(
        loop["w"].astype(np.float32), WEIGHTS["w"] - 0.5 * fed["grad_w"], rtol=1e-2, atol=1e-2
    )


def test_half_precision_is_summed_in_float32_where_asked():
    weights = {"w": np.zeros(1, np.float16)}
    model = accumulate(gradient_graph(weights), 3, DataType.FLOAT)
    optimizer = SGD({"defaultLearningRate": (1.0, True)})
    loop = Loop(grow_updates(model, optimizer), optimizer)
    for value in (2048.0, 1.0, 1.0):
        loop.states["w"] = weights["w"]
        loop.step(grad_w=np.asarray([value], np.float16))
    assert loop["Accum___w"] == 2050.0


def test_a_second_accumulation_is_refused():
    model = accumulate(gradient_graph(WEIGHTS), 2)
    with pytest.raises(UpdateError, match="accumulated already"):
        accumulate(model, 2)
    with pytest.raises(UpdateError, match="positive whole number"):
        accumulate(gradient_graph(WEIGHTS), 0)


def test_a_model_without_gradients_is_refused():
    model = gradient_graph(WEIGHTS)
    for node in model.graph:
        if node.op_type == "Mul":
            node.outputs[0].name = f"other_{node.outputs[0].name}"
    with pytest.raises(UpdateError, match="no weight of the model has a gradient"):
        accumulate(model, 2)
