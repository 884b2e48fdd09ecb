"""A model whose weights stand in the bodies of If, Loop and Scan, and what torch makes of it."""

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
STARTS = {
    "w": np.linspace(-0.5, 0.5, 12, dtype=np.float32).reshape(4, 3),
    "then": np.array([0.5, -1, 1.5], np.float32),
    "else": np.array([-0.3, 0.9, 0.2], np.float32),
    "turn": np.array([[0.9, 0.1, 0], [0, 0.8, -0.2], [0.3, 0, 0.7]], np.float32),
    "walk": np.array([0.4, -0.6, 0.8], np.float32),
}


def _info(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def _branch(name, start, rows):
    """Both branches call their weight the same."""
    node = helper.make_node("Mul", ["h", "factor"], [f"{name}_out"])
    weight = numpy_helper.from_array(start, "factor")
    return helper.make_graph([node], name, [], [_info(f"{name}_out", [rows, 3])], [weight])


def nested_model(rows):
    """``scores = walk over rows of tanh(tanh(If(x w) turn) turn)``; opset 18."""
    branches = {
        "then_branch": _branch("then", STARTS["then"], rows),
        "else_branch": _branch("else", STARTS["else"], rows),
    }
    turn = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "turn"], ["raw"]),
            helper.make_node("Tanh", ["raw"], ["next"]),
            helper.make_node("Identity", ["on"], ["still"]),
        ],
        "turns",
        [
            _info("number", [], TensorProto.INT64),
            _info("on", [], TensorProto.BOOL),
            _info("state", [rows, 3]),
        ],
        [_info("still", [], TensorProto.BOOL), _info("next", [rows, 3])],
        [numpy_helper.from_array(STARTS["turn"], "turn")],
    )
    walk = helper.make_graph(
        [
            helper.make_node("Mul", ["row", "walk"], ["scaled"]),
            helper.make_node("Identity", ["seen"], ["kept"]),
        ],
        "walks",
        [_info("seen", []), _info("row", [3])],
        [_info("kept", []), _info("scaled", [3])],
        [numpy_helper.from_array(STARTS["walk"], "walk")],
    )
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("MatMul", ["x", "w"], ["first"]),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node("Not", ["positive"], ["negative"]),
        helper.make_node("Identity", ["first"], ["h"]),
        helper.make_node("If", ["positive"], ["one"], **branches),
        helper.make_node("If", ["negative"], ["other"], **branches),
        helper.make_node("Add", ["one", "other"], ["both"]),
        helper.make_node("Loop", ["count", "", "both"], ["turned"], body=turn),
        helper.make_node("Scan", ["zero", "turned"], ["end", "y"], body=walk, num_scan_inputs=1),
    ]
    graph = helper.make_graph(
        nodes,
        "nested",
        [_info("x", [rows, 4])],
        [_info("y", [rows, 3])],
        [
            numpy_helper.from_array(STARTS["w"], "w"),
            numpy_helper.from_array(np.array(2, np.int64), "count"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


NAMES = {
    "w": "w",
    "then": "one/then_branch/factor",
    "else": "other/else_branch/factor",
    "turn": "turn",
    "walk": "walk",
}
"""What the weights that get gradients are called in the main graph."""


def torch_forward(x, weights):
    h = x @ weights["w"]
    # The first If takes its first branch for positive data, the second one its second branch.
    h = h * weights["then"] + h * weights["else"]
    for _ in range(2):
        h = torch.tanh(h @ weights["turn"])
    return h * weights["walk"]


def trained_by_torch(x, y, rate, steps, frozen=()):
    """Plain descent along the mean squared error of the whole batch, in float64."""
    weights = {name: torch.tensor(start).double() for name, start in STARTS.items()}
    learnt = [name for name in weights if name not in frozen]
    for _ in range(steps):
        for name in learnt:
            weights[name] = weights[name].detach().requires_grad_()
        made = torch_forward(torch.tensor(x).double(), weights)
        loss = ((made - torch.tensor(y).double()) ** 2).mean()
        slopes = torch.autograd.grad(loss, [weights[name] for name in learnt])
        for name, slope in zip(learnt, slopes, strict=True):
            weights[name] = weights[name] - rate * slope
    return {name: weight.detach().numpy() for name, weight in weights.items()}


def nested_data(rows):
    rng = np.random.default_rng(5)
    return np.abs(rng.standard_normal((rows, 4))).astype(np.float32), rng.standard_normal(
        (rows, 3)
    ).astype(np.float32)
