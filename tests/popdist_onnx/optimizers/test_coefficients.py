"""Arithmetic with numbers of an update: constants fold, equal nodes are written once."""

import math
import operator

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist_onnx.graph.load import save
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.optimizers.coefficients import Coefficients

OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "max": max,
}


def apply(name, left, right):
    if name == "max" and not isinstance(left, float):
        return left.larger(right)
    return OPERATIONS[name](left, right)


@pytest.fixture
def table():
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="numbers")
    return Coefficients(Tape(graph), ir.DataType.DOUBLE)


def value(table, coefficient):
    graph = table.tape.graph
    named = table.tape.many("Identity", ["result"], coefficient.operand())[0]
    graph.outputs.append(named.value)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        save(ir.Model(graph, ir_version=9)).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    feeds = {i.name: np.asarray(float(i.name.removeprefix("input "))) for i in session.get_inputs()}
    return float(session.run(None, feeds)[0])


NUMBERS = st.sampled_from([0.0, 1.0, 2.0, 0.5, 3.0])
STEPS = st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), NUMBERS, st.booleans()), max_size=5)


@settings(max_examples=50, deadline=None)
@given(start=NUMBERS, known=st.booleans(), steps=STEPS)
def test_what_is_folded_and_what_is_written_agree(start, known, steps):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="numbers")
    made = Coefficients(Tape(graph), ir.DataType.DOUBLE)

    def operand(number, *, known):
        if known:
            return made.known(number)
        name = f"input {number}"
        found = next((v for v in graph.inputs if v.name == name), None)
        tensor = made.tape.input(name, ir.DataType.DOUBLE, []) if found is None else None
        return made.read(tensor or made.tape.wrap(found))

    expected, coefficient = start, operand(start, known=known)
    for name, number, is_known in steps:
        if name == "/" and number == 0:
            continue
        expected = apply(name, expected, number)
        coefficient = apply(name, coefficient, operand(number, known=is_known))
    assert math.isclose(value(made, coefficient), expected, rel_tol=1e-12, abs_tol=1e-12)


def test_equal_nodes_are_written_once(table):
    rate = table.read(table.tape.input("rate", ir.DataType.DOUBLE, []))
    first, second = 1 - rate * 2.0, 1 - rate * 2.0
    assert first.tensor.value is second.tensor.value
    kinds = [node.op_type for node in table.tape.graph if node.op_type != "Constant"]
    assert kinds == ["Mul", "Sub"]


def test_zero_times_anything_is_zero(table):
    rate = table.read(table.tape.input("rate", ir.DataType.DOUBLE, []))
    assert (rate * 0.0).zero
    assert (1 - rate * 0.0).number == 1
