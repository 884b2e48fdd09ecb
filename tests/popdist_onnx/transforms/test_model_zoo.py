"""The model-zoo architectures inside the onnx wheel: gradients along which the loss truly falls."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from popdist_onnx.graph.load import load
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.transforms.autodiff import autodiff, gradients_of
from popdist_onnx.transforms.loss import add_sum
from popdist_onnx.transforms.randomness import random_inputs
from tests.popdist_onnx.gradients.harness import session

FORWARD = onnxruntime.RunOptions()
FORWARD.only_execute_path_to_fetches = True  # the loss needs no backward pass
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def with_weights(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Gives the light models, whose weights are made by nodes, weights: initializers without data.

    Content comes at run time, as in a session: a copy of hundreds of megabytes less.
    """
    rng = np.random.default_rng(0)
    shapes = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    made = {}
    for node in list(proto.graph.node):
        if node.op_type == "ConstantOfShape":
            shape = tuple(shapes[node.input[0]])
            fan = np.prod(shape[1:], initial=1)
            array = rng.random(shape, np.float32)
            array = array * 0.5 + 0.75 if len(shape) == 1 else (array - 0.5) * np.sqrt(24 / fan)
            made[node.output[0]] = array.astype(np.float32)
            tensor = onnx.TensorProto(name=node.output[0], data_type=1, dims=shape)
            proto.graph.initializer.append(tensor)
            proto.graph.node.remove(node)
    return made


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.onnx")), ids=lambda path: path.stem)
def test_gradient_is_the_slope_of_the_loss(path):
    proto = onnx.load(path)
    weights = with_weights(proto)
    model = random_inputs(load(proto), training=False)
    graph, rng = model.graph, np.random.default_rng(1)
    tape = Tape(graph)
    # Scores before the softmax, which untrained networks saturate.
    (output,) = graph.outputs
    (last,) = [node for node in graph if output in node.outputs]
    output = tape.wrap(last.inputs[0] if last.op_type == "Softmax" else output)
    part = rng.standard_normal(output.shape).astype(np.float32)
    autodiff(add_sum(model, (output * part).name, "sum"))
    gradients = gradients_of(model)
    trained = [name for name in weights if name in gradients]
    assert len(trained) > len(weights) // 3
    graph.outputs[:] = [next(one for one in graph.outputs if one.name == "loss")]
    graph.outputs.extend(gradients[name] for name in trained)
    for name in weights:
        graph.inputs.append(graph.initializers.pop(name))
        graph.inputs[-1].const_value = None
    (data,) = (value for value in graph.inputs if value.name not in weights)
    x = rng.standard_normal(tuple(data.shape.numpy())).astype(np.float32)
    feeds = weights | {str(data.name): x}
    run = session(model)
    _, *found = run.run(None, feeds)
    assert all(np.isfinite(one).all() for one in found)
    # Along its gradient the loss falls as fast as the gradient is long; kinks of the many Relus
    # behind the first layer make that less exact.
    for index, tolerance in ((0, 0.1), (-1, 0.02)):
        name, gradient = trained[index], found[index]
        length = float(np.linalg.norm(gradient))
        step = 1e-3 * float(np.linalg.norm(weights[name]))
        moved = [weights[name] + sign * step / length * gradient for sign in (1, -1)]
        ends = [run.run(["loss"], feeds | {name: one}, FORWARD)[0] for one in moved]
        slope = (float(ends[0]) - float(ends[1])) / (2 * step)
        assert slope == pytest.approx(length, rel=tolerance), name
    del run, found, feeds, weights, model
    gc.collect()
