"""The types that operators train in are those that the table says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as states

from popdist_onnx.gradients.registry import WITHOUT_FLOAT16, WITHOUT_FLOAT64
from tests.popdist_onnx.gradients.harness import check
from tests.popdist_onnx.gradients.test_recurrent import HIDDEN, Case, loop, operands
from tests.popdist_onnx.gradients.test_rules import CASES

# One case says nothing of its operator's type: a cast has its own, the others' forward node is
# what lacks a kernel (an exact Gelu needs Erf, adding up by ScatterElements needs float32).
TYPED = [
    case
    for case in CASES
    if case.op_type != "Cast"
    and not (case.op_type == "Gelu" and not case.attributes)
    and "reduction" not in (case.attributes if case.op_type == "ScatterElements" else ())
]
TYPED += [
    Case(kind, operands(kind, 1, full=True), loop(kind, "forward"), {"hidden_size": HIDDEN}, count)
    for kind, count in (("LSTM", 3), ("GRU", 2), ("RNN", 2))
]
LACKING = (states.NotImplemented, states.InvalidGraph, states.Fail, states.RuntimeException)


def name(case):
    return f"{case.op_type}-{case.opset}"


@pytest.mark.parametrize("case", TYPED, ids=name)
def test_float64(case):
    case = dataclasses.replace(case, tolerance=1e-5)
    if case.op_type in WITHOUT_FLOAT64:
        with pytest.raises(LACKING):
            check(case, np.float64)
    else:
        check(case, np.float64)


@pytest.mark.parametrize("case", TYPED, ids=name)
def test_float16(case):
    case = dataclasses.replace(case, tolerance=3e-2)
    if case.op_type in WITHOUT_FLOAT16:
        with pytest.raises(LACKING):
            check(case, np.float16)
    else:
        check(case, np.float16)
