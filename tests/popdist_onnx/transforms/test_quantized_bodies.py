"""Quantizers inside `Loop`, `If` and `Scan` train as torch's fake quantization, or are refused."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import popdist_onnx
from tests.popdist_onnx.transforms.test_quantization import trained

SCALE, ZERO, ROUNDS, WIDTH = 0.01, 3, 3, 4
_NUMBERS = np.random.default_rng(0)
WEIGHT = _NUMBERS.normal(size=(WIDTH, WIDTH)).astype(np.float32)
INPUT = _NUMBERS.normal(size=(3, WIDTH)).astype(np.float32)
FACTORS = _NUMBERS.normal(size=(3, WIDTH)).astype(np.float32)
NUMBERS = {"s": np.float32(SCALE), "z": np.int8(ZERO)}
GIVEN = {
    **NUMBERS,
    "x": INPUT,
    "w": WEIGHT,
    "c": FACTORS,
    "start": np.zeros(WIDTH, np.float32),
    "times": np.asarray(ROUNDS),
    "true": np.ones((), bool),
    "s2": np.float32(0.06),
}


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def pair(name, made, *, scale="s"):
    return [
        node("QuantizeLinear", f"{name} s z", f"{name}/q"),
        node("DequantizeLinear", f"{name}/q {scale} z", made),
    ]


TAIL = [node("MatMul", "hh ww", "m"), node("Tanh", "m", "next")]
BOTH = [*pair("w", "ww"), *pair("h", "hh"), *TAIL]


def loop(body, *, state="h", end="next", kind=TensorProto.FLOAT, start="x", made="y", stored=()):
    shape = [3, WIDTH]
    graph = helper.make_graph(
        [*body, node("Identity", "go", "on")],
        "body",
        [
            value("i", [], TensorProto.INT64),
            value("go", [], TensorProto.BOOL),
            value(state, shape, kind),
        ],
        [value("on", [], TensorProto.BOOL), value(end, shape, kind)],
        stored,
    )
    return node("Loop", f"times true {start}", made, body=graph)


def branch(nodes, name, kind=TensorProto.FLOAT):
    return helper.make_graph(nodes, name, [], [value(name, [3, WIDTH], kind)])


def either(condition, nodes, name, made, other="x", kind=TensorProto.FLOAT):
    copied = "QuantizeLinear" if kind == TensorProto.INT8 else "Identity"
    read = f"{other} s z" if kind == TensorProto.INT8 else other
    return node(
        "If",
        condition,
        made,
        then_branch=branch(nodes, name, kind),
        else_branch=branch([node(copied, read, f"{name}/else")], f"{name}/else", kind),
    )


def rows():
    body = [*pair("w", "ww"), *pair("row", "hh"), node("MatMul", "hh ww", "m")]
    body += [node("Add", "m before", "sum"), node("Tanh", "sum", "out")]
    graph = helper.make_graph(
        [*body, node("Identity", "out", "row_out")],
        "body",
        [value("before", [WIDTH]), value("row", [WIDTH])],
        [value("out", [WIDTH]), value("row_out", [WIDTH])],
    )
    return node("Scan", "start x", "last y", body=graph, num_scan_inputs=1)


def constants():
    return [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(one)))
        for name, one in NUMBERS.items()
    ]


def initializers():
    return [numpy_helper.from_array(np.asarray(one), name) for name, one in NUMBERS.items()]


def fake(tensor):
    return torch.fake_quantize_per_tensor_affine(tensor, SCALE, ZERO, -128, 127)


def one_round(hidden, weight):
    return torch.tanh(fake(hidden) @ fake(weight))


def all_rounds(hidden, weight):
    for _ in range(ROUNDS):
        hidden = one_round(hidden, weight)
    return hidden


def by_rows(hidden, weight):
    before, made = torch.zeros(WIDTH), []
    for row in hidden:
        before = torch.tanh(fake(row) @ fake(weight) + before)
        made.append(before)
    return torch.stack(made)


TRAINED = {
    "pairs in a loop": ([loop(BOTH)], all_rounds),
    "a quantizer before the loop": ([BOTH[0], loop(BOTH[1:])], all_rounds),
    "scales that the body stores": ([loop(BOTH, stored=initializers())], all_rounds),
    "scales that the body makes": ([loop([*constants(), *BOTH])], all_rounds),
    "pairs in a branch": (
        [either("true", [*pair("w", "ww"), *pair("x", "hh"), *TAIL], "next", "y")],
        one_round,
    ),
    "pairs in a branch in a loop": (
        [loop([either("go", [*BOTH[:-1], node("Tanh", "m", "t")], "t", "next", "h")])],
        all_rounds,
    ),
    "pairs in a scan": ([rows()], by_rows),
}


def model(nodes):
    """``loss = sum(c * y)``; numbers that a body holds itself are not stored outside."""
    nodes = [*nodes, node("Mul", "y c", "parts"), node("ReduceSum", "parts", "loss", keepdims=0)]
    graph = helper.make_graph(
        nodes,
        "model",
        [],
        [value("loss", []), value("y", [3, WIDTH])],
        [numpy_helper.from_array(np.asarray(one), name) for name, one in GIVEN.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    bodies = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    own = {one.name for body in bodies for one in body.initializer}
    own |= {name for body in bodies for one in body.node for name in one.output}
    kept = [one for one in made.graph.initializer if one.name not in own]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    onnx.checker.check_model(made, full_check=True)
    return made


@pytest.mark.parametrize("case", TRAINED)
def test_pairs_in_a_body_train_as_fake_quantization_of_torch(case):
    nodes, wanted = TRAINED[case]
    found = trained(model(nodes), ["x", "w"])
    x, w = (torch.tensor(one, requires_grad=True) for one in (INPUT, WEIGHT))
    made = wanted(x, w)
    (made * torch.tensor(FACTORS)).sum().backward()
    assert 0 < np.count_nonzero(w.grad.numpy() == 0) < WEIGHT.size
    for name, right in {"y": made.detach(), "x": x.grad, "w": w.grad}.items():
        np.testing.assert_allclose(found[name], right.numpy(), rtol=1e-5, atol=1e-6)


INTEGERS = TensorProto.INT8
REFUSED = {
    "a state of whole numbers": [
        node("QuantizeLinear", "x s z", "start_q"),
        loop(
            [
                *pair("w", "ww"),
                node("DequantizeLinear", "h s z", "hh"),
                *TAIL,
                node("QuantizeLinear", "next s z", "next_q"),
            ],
            end="next_q",
            kind=INTEGERS,
            start="start_q",
            made="end_q",
        ),
        node("DequantizeLinear", "end_q s z", "y"),
    ],
    "whole numbers from a branch": [
        either(
            "true",
            [node("MatMul", "x w", "m"), node("QuantizeLinear", "m s z", "q")],
            "q",
            "either",
            kind=INTEGERS,
        ),
        node("DequantizeLinear", "either s z", "y"),
    ],
    "another scale in a loop": [loop([*pair("w", "ww", scale="s2"), *pair("h", "hh"), *TAIL])],
    "an integer product in a loop": [
        loop(
            [
                node("DynamicQuantizeLinear", "h", "hq hs hz"),
                node("DynamicQuantizeLinear", "w", "wq ws wz"),
                node("MatMulInteger", "hq wq hz wz", "sums"),
                node("Cast", "sums", "wide", to=TensorProto.FLOAT),
                node("Mul", "hs ws", "scales"),
                node("Mul", "wide scales", "m"),
                TAIL[1],
            ]
        )
    ],
}


@pytest.mark.parametrize("case", REFUSED)
def test_whole_numbers_that_a_body_hands_on_are_refused(case):
    with pytest.raises(popdist_onnx.popart_exception, match="PD598"):
        trained(model(REFUSED[case]), ["x", "w"])
