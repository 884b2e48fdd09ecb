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


# A program in ONNX's text, whose bodies leave the number of samples open.

OPEN = """<ir_version: 8, opset_import: ["" : 18]>
program (float[N, 3] x, float[N, 2] target) => (float[N, 2] y, float loss)
<float[3, 3] w = {0.3, -0.2, 0.5, 0.1, 0.4, -0.6, 0.2, 0.2, -0.1},
 float[3, 2] v = {0.5, -0.4, 0.3, 0.2, -0.7, 0.6}, float[3] b = {0.1, -0.1, 0.05},
 int64 three = {3}, bool yes = {1}, float limit = {0.0}>
{
  h = Loop (three, yes, x) <body = turn (int64 i, bool c, float[N, 3] s)
    => (bool d, float[N, 3] t) {
      d = Identity (c)
      m = MatMul (s, w)
      a = Add (m, b)
      t = Tanh (a)
    }>
  z = MatMul (h, v)
  mean = ReduceMean <keepdims = 0> (x)
  positive = Greater (mean, limit)
  y = If (positive) <
    then_branch = one () => (float[N, 2] p) { p = Sigmoid (z) },
    else_branch = other () => (float[N, 2] q) {
      two = Constant <value_float = 2.0> ()
      q = Mul (z, two)
    }>
  e = Sub (y, target)
  squared = Mul (e, e)
  loss = ReduceMean <keepdims = 0> (squared)
}"""


def open_data(batch):
    """Samples whose branch changes with each global batch, not within one."""
    numbers = np.random.default_rng(1)
    x, target = (numbers.normal(size=(4 * batch, n)).astype(np.float32) for n in (3, 2))
    x += np.repeat([1.5, -1.5, 1.5, -1.5], batch)[:, None].astype(np.float32)
    return {"x": x, "target": target}


def open_by_torch(batch, rate, epochs):
    """The program of `OPEN` on whole global batches in float64."""
    stored = {
        "w": [[0.3, -0.2, 0.5], [0.1, 0.4, -0.6], [0.2, 0.2, -0.1]],
        "v": [[0.5, -0.4], [0.3, 0.2], [-0.7, 0.6]],
        "b": [0.1, -0.1, 0.05],
    }
    held = {n: torch.tensor(one, dtype=torch.float64) for n, one in stored.items()}
    rule = torch.optim.SGD([one.requires_grad_() for one in held.values()], rate)
    data = {name: torch.from_numpy(one).double() for name, one in open_data(batch).items()}
    for start in epochs * list(range(0, len(data["x"]), batch)):
        x, target = (one[start : start + batch] for one in data.values())
        h = x
        for _ in range(3):
            h = torch.tanh(h @ held["w"] + held["b"])
        z = h @ held["v"]
        rule.zero_grad()
        torch.nn.functional.mse_loss(z.sigmoid() if x.mean() > 0 else 2 * z, target).backward()
        rule.step()
    return {name: one.detach().numpy() for name, one in held.items()}
