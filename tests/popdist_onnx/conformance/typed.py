"""The cases again in other element types, where operators have them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx

from popdist_onnx.gradients.registry import WITHOUT_FLOAT16, WITHOUT_FLOAT64
from tests.popdist_onnx.conformance.case import EXHAUSTIVE, Case
from tests.popdist_onnx.conformance.cases import all_cases, opsets_of
from tests.popdist_onnx.conformance.graphcore import graphcore_cases

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOATS = {"float16": WITHOUT_FLOAT16, "float64": WITHOUT_FLOAT64}
"""The operators without a kernel, by type."""

INTEGERS = ("int32", "int64")

_TENSORS = {"float16": "float16", "float64": "double", "int32": "int32", "int64": "int64"}

_A_FEW = {False: 3, True: 1}
"""Cases of an operator and type that every run takes, ordinary and awkward ones."""


def typed_cases(dtype: str) -> list[tuple[Case, int]]:
    """The cases of one type, each with its opset.

    Args:
        dtype: The type, as numpy calls it.

    Returns:
        A few of each operator; with ``POPDIST_EXHAUSTIVE=1`` all, at all opsets.
    """
    taken: Counter[tuple[str, bool]] = Counter()
    found = []
    for case in _cases():
        opsets = [one for one in opsets_of(case) if one <= case.until]
        for opset in opsets if EXHAUSTIVE else opsets[-1:]:
            made = _in_type(case, dtype, opset)
            key = (case.op_type, case.awkward)
            if made is None or (not EXHAUSTIVE and taken[key] >= _A_FEW[case.awkward]):
                continue
            taken[key] += 1
            found.append((made, opset))
    return found


@cache
def _cases() -> Sequence[Case]:
    return [*all_cases(), *graphcore_cases()]


def _in_type(case: Case, dtype: str, opset: int) -> Case | None:
    """The case with its floating-point inputs in another type; None where there is no such node."""
    places = [
        place
        for place, one in enumerate(case.inputs)
        if one is not None and one.dtype == np.float32 and _takes(case, place, dtype, opset)
    ]
    if not places:
        return None
    if dtype in FLOATS:
        if case.op_type in FLOATS[dtype]:
            return None
        with np.errstate(over="ignore"):
            inputs = [
                one.astype(dtype) if place in places else one
                for place, one in enumerate(case.inputs)
            ]
        return replace(case, inputs=inputs, dtype=dtype)
    if case.op_type in WITHOUT_INTEGERS or case.attributes.get("mode") in ("linear", "cubic"):
        # ONNX does not say how interpolated integers are rounded.
        return None
    if case.torch is not None and case.op_type not in _BY_TORCH:
        return None
    inputs = [
        np.asarray(np.clip(np.round(one * 2), -2, 2), dtype) if place in places else one
        for place, one in enumerate(case.inputs)
    ]
    return replace(case, inputs=inputs, slope=False)


WITHOUT_INTEGERS = {
    **dict.fromkeys(
        ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "LpNormalization"),
        "the result is no integer, and ONNX's evaluator does not say how it is rounded",
    ),
    "Gemm": "no kernel",
}
"""Operators whose integers are not compared, and why."""

_BY_TORCH = frozenset({"Gather", "GatherElements", "ScatterElements", "Scatter", "MaxPool"})
"""Operators whose integers torch computes as well as its floating-point numbers."""


def _takes(case: Case, place: int, dtype: str, opset: int) -> bool:
    if case.domain:
        return dtype in FLOATS and place not in case.fixed
    schema = onnx.defs.get_schema(case.op_type, opset, "")
    formal = schema.inputs[min(place, len(schema.inputs) - 1)]
    return f"tensor({_TENSORS[dtype]})" in formal.types
