"""Runs many cases in one graph: forward and gradients in one session of ONNX Runtime."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from popdist_onnx.gradients.registry import differentiable
from popdist_onnx.graph.load import load
from popdist_onnx.lowering.apply import lower
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from tests.popdist_onnx.gradients.harness import session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.popdist_onnx.conformance.case import Case

STEP = 1e-5


_HALF_TOLERANCE, _DOUBLE_TOLERANCE = 2e-3, 1e-6


def _floating(array: Any) -> bool:
    return array is not None and array.dtype.kind == "f"


def wanted(case: Case) -> list[int]:
    """The inputs whose gradients are compared."""
    if not case.slope:
        return []
    return [i for i, one in enumerate(case.inputs) if _floating(one) and i not in case.fixed]


def _fed(case: Case, place: int, opset: int) -> bool:
    """Whether an input comes at run time: a node of constants would be computed while loading."""
    if case.domain or case.op_type in _OF_SHAPES or place in case.fixed:
        return False
    formal = onnx.defs.get_schema(case.op_type, opset, "").inputs
    return formal[min(place, len(formal) - 1)].type_str == formal[0].type_str


_OF_SHAPES = {"ConstantOfShape", "Range", "Expand"}


def run(cases: Sequence[Case], opset: int) -> list[tuple[list[Any], list[Any]]]:
    """What the cases make, and the gradients of their weighed sums.

    Args:
        cases: The cases.
        opset: Their opset.

    Returns:
        Outputs and gradients of each case.
    """
    nodes, values, initializers, feeds, parts, sources, ends = [], [], [], {}, [], [], []
    weighed = [weights(case, opset) for case in cases]
    for number, case in enumerate(cases):
        names = []
        for place, array in enumerate(case.inputs):
            name = "" if array is None else f"{number}.in{place}"
            names.append(name)
            if array is None:
                continue
            if place in wanted(case) or _fed(case, place, opset):
                feeds[name] = array
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                values.append(helper.make_tensor_value_info(name, kind, array.shape))
                sources += [name] if place in wanted(case) else []
            else:
                tensor = numpy_helper.from_array(array)
                nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        outputs = [f"{number}.out{place}" for place in range(case.outputs)]
        nodes.append(_node(case, names, outputs, f"{number}"))
        ends += outputs
        for place, factors in weighed[number].items():
            tensor = numpy_helper.from_array(factors.astype(np.float32))
            nodes += [
                helper.make_node("Constant", [], [f"{number}.c{place}"], value=tensor),
                helper.make_node(
                    "Cast", [f"{number}.out{place}"], [f"{number}.f{place}"], to=TensorProto.FLOAT
                ),
                helper.make_node(
                    "Mul", [f"{number}.f{place}", f"{number}.c{place}"], [f"{number}.w{place}"]
                ),
                helper.make_node(
                    "ReduceSum", [f"{number}.w{place}"], [f"{number}.s{place}"], keepdims=0
                ),
            ]
            parts.append(f"{number}.s{place}")
    graph_outputs = [helper.make_empty_tensor_value_info(name) for name in ends]
    if parts:
        nodes.append(helper.make_node("Sum", parts, ["loss"]))
        graph_outputs.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    graph = helper.make_graph(nodes, "cases", values, graph_outputs, initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.graphcore", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    model = lower(load(proto), keep=differentiable("ai.graphcore"))
    if parts:
        model = lower(autodiff(set_loss(model, "loss"), outputs=sources))
    made = session(model)
    found = dict(zip([one.name for one in made.get_outputs()], made.run(None, feeds), strict=True))
    results = []
    for number, case in enumerate(cases):
        gradients = [found.get(f"Gradient___{number}.in{place}") for place in wanted(case)]
        results.append(
            ([found[f"{number}.out{place}"] for place in range(case.outputs)], gradients)
        )
    return results


def _node(case: Case, names: list[str], outputs: list[str], name: str) -> NodeProto:
    node = helper.make_node(case.op_type, names, outputs, name=name, domain=case.domain)
    for key, value in case.attributes.items():
        kind = AttributeProto.INTS if isinstance(value, list) and not value else None
        node.attribute.append(helper.make_attribute(key, value, attr_type=kind))
    return node


def forward(case: Case, opset: int, inputs: Sequence[Any] | None = None) -> list[Any]:
    """What torch or ONNX's reference evaluator makes of a case."""
    operands = inputs
    if operands is None:
        operands = case.inputs if case.dtype == "float32" else _base(case)
    if case.torch is not None:
        tensors = [None if one is None else torch.tensor(_wide(one)) for one in operands]
        made = case.torch(*tensors)
        return [one.numpy() for one in ([made] if isinstance(made, torch.Tensor) else made)]
    names = [f"in{place}" if one is not None else "" for place, one in enumerate(operands)]
    outputs = [f"out{place}" for place in range(case.outputs)]
    node = _node(case, names, outputs, "node")
    feeds = {name: np.asarray(one) for name, one in zip(names, operands, strict=True) if name}
    empty = helper.make_empty_tensor_value_info
    graph = helper.make_graph(
        [node], "node", [empty(n) for n in feeds], [empty(n) for n in outputs]
    )
    # A model, because the evaluator of a bare node takes the newest version of the operator.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return [np.asarray(one) for one in ReferenceEvaluator(model).run(None, feeds)]


def _wide(array: Any) -> Any:
    return array.astype(np.float64) if _floating(array) else array


def _base(case: Case) -> list[Any]:
    """The operands in double precision; settings such as scales stay in single precision."""
    return [
        one if i in case.fixed else _wide(one) if _floating(one) else one
        for i, one in enumerate(case.inputs)
    ]


@cache
def expected(case: Case, opset: int) -> list[Any]:
    """The outputs at the case's own operands."""
    return forward(case, opset)


@cache
def weights(case: Case, opset: int) -> dict[int, Any]:
    """A factor for every element of every output that is a floating-point number."""
    if not wanted(case):
        return {}
    return {
        place: np.random.default_rng(place).standard_normal(one.shape)
        for place, one in enumerate(expected(case, opset))
        if one.dtype in (np.float32, np.float64)
    }


def slopes(case: Case, opset: int) -> list[Any]:
    """The gradients: torch's, or differences of ONNX's reference evaluator, in float64."""
    factors = weights(case, opset)
    if case.torch is not None and not case.by_differences:
        tensors = [
            None if one is None else torch.tensor(_wide(one), requires_grad=_floating(one))
            for one in case.inputs
        ]
        made = case.torch(*tensors)
        made = [made] if isinstance(made, torch.Tensor) else made
        loss = sum((made[place] * torch.tensor(one)).sum() for place, one in factors.items())
        if loss.requires_grad:
            loss.backward()
        grads = [tensors[place].grad for place in wanted(case)]
        return [
            np.zeros(case.inputs[place].shape) if one is None else one.numpy()
            for one, place in zip(grads, wanted(case), strict=True)
        ]

    def loss_at(inputs: list[Any]) -> float:
        made = forward(case, opset, inputs)
        return float(sum((made[place] * one).sum() for place, one in factors.items()))

    base = _base(case)
    found = []
    for place in wanted(case):
        gradient = np.zeros(base[place].shape)
        for index in np.ndindex(*gradient.shape):
            ends = []
            for sign in (1, -1):
                moved = list(base)
                moved[place] = base[place].copy()
                moved[place][index] += sign * STEP
                ends.append(loss_at(moved))
            gradient[index] = (ends[0] - ends[1]) / (2 * STEP)
        found.append(gradient)
    return found


def mismatch(case: Case, opset: int, made: Sequence[Any], gradients: Sequence[Any]) -> str | None:
    """What is wrong with results, if anything."""
    for place, (one, want) in enumerate(zip(made, expected(case, opset), strict=False)):
        if case.read is not None and place not in case.read:
            continue
        if one.shape != want.shape:
            return f"output {place} has shape {one.shape}, not {want.shape}"
        if not _close(one, want, _tolerance(case)):
            return f"output {place} is {one.tolist()}, not {want.tolist()}"
    if not case.slope:
        return None
    for place, one, want in zip(wanted(case), gradients, slopes(case, opset), strict=True):
        got = np.zeros(want.shape) if one is None else one
        if got.shape != want.shape:
            return f"gradient {place} has shape {got.shape}, not {want.shape}"
        if not _close(got, want, _tolerance(case) * 4):
            return f"gradient {place} is {got.tolist()}, not {want.tolist()}"
    return None


def _tolerance(case: Case) -> float:
    """That of the case, which is single precision's, in the case's own type."""
    if case.dtype == "float16":
        return max(_HALF_TOLERANCE, min(case.tolerance * 100, 1e-2))
    return _DOUBLE_TOLERANCE if case.dtype == "float64" else case.tolerance


def _close(one: Any, want: Any, tolerance: float) -> bool:
    if one.dtype.kind != "f" or want.dtype.kind != "f":
        return bool(np.array_equal(one, want))
    with np.errstate(over="ignore"):
        # What is beyond the type's range is infinite.
        want = want.astype(one.dtype).astype(np.float64)
    one = one.astype(np.float64)
    finite = want[np.isfinite(want)]
    scale = max(1.0, float(np.abs(finite).max(initial=0)))
    return bool(np.allclose(one, want, rtol=tolerance * 4, atol=tolerance * scale, equal_nan=True))
