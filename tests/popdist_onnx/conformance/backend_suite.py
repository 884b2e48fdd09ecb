"""ONNX's own backend suite: forward as the suite says, gradients as differences of its files.

The suite comes with the `onnx` package: small files with inputs and outputs, for every operator at
its newest version, and networks of older opsets. The judge of a gradient is ONNX's evaluator in
double precision; where it differs from ONNX Runtime, ONNX Runtime in double or single precision.
"""

from __future__ import annotations

import fnmatch
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test import loader
from onnx.reference import ReferenceEvaluator

from popdist.errors import PopdistError
from popdist_onnx import SessionOptions
from popdist_onnx.errors import popart_internal_exception
from popdist_onnx.gradients.registry import differentiable
from popdist_onnx.graph.load import load, read, save
from popdist_onnx.lowering.apply import lower
from popdist_onnx.lowering.registry import DOMAIN
from popdist_onnx.session.pipeline import inference_graph
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from popdist_onnx.transforms.randomness import random_inputs
from popdist_onnx.transforms.statistics import running_statistics
from tests.popdist_onnx.conformance.backend_reasons import SETTINGS
from tests.popdist_onnx.gradients.harness import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnxruntime

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_RANDOM_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(bool)": np.bool_,
}


class Verdict(NamedTuple):
    """What became of a case.

    Attributes:
        word: same, differs, refused, crash; also why a gradient is not compared.
        detail: Numbers, or the error.
    """

    word: str
    detail: str = ""


@dataclass(frozen=True)
class Case:
    """A file of the suite with its inputs and outputs."""

    name: str
    folder: Path
    rtol: float
    atol: float

    @property
    def path(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def number(self) -> int:
        """A number that depends on the name only, to choose samples by."""
        return zlib.crc32(self.name.encode())

    def sets(self, proto: onnx.ModelProto) -> Iterator[tuple[dict[str, Any], list[Any]]]:
        """Inputs by name, and outputs."""
        for folder in sorted(self.folder.glob("test_data_set_*")):
            count = len(list(folder.glob("input_*.pb")))
            inputs = {
                value.name: _content(folder / f"input_{place}.pb", value.type)
                for place, value in enumerate(proto.graph.input[:count])
            }
            outputs = [
                _content(folder / f"output_{place}.pb", value.type)
                for place, value in enumerate(proto.graph.output)
            ]
            yield inputs, outputs


@cache
def all_cases() -> list[Case]:
    """The cases of the installed package."""
    return [
        Case(one.name, Path(one.model_dir), one.rtol, one.atol)
        for kind in KINDS
        for one in loader.load_model_tests(kind=kind)
    ]


def reason(case: Case, table: Sequence[tuple[str, str, str]]) -> tuple[str, str] | None:
    """The expected word and its reason, for a case that is not expected to be the same."""
    for patterns, word, why in table:
        if any(fnmatch.fnmatchcase(case.name, f"test_{one}") for one in patterns.split()):
            return word, why
    return None


def _content(path: Path, kind: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(TensorProto.FromString(data))


# Forward.


def forward(case: Case) -> Verdict:
    """Whether the graph that a session would run gives what the suite says."""
    proto = onnx.load(case.path)
    try:
        made = save(inference_graph(read(case.path), SessionOptions()))
    except Exception as error:  # noqa: BLE001 - whatever a case raises is its verdict
        verdict = _refusal(error)
    else:
        verdict = _compared(case, proto, made)
    if verdict.word == "same" or not _passes(case, proto):
        return verdict if verdict.word == "same" else Verdict("unjudged", verdict.detail)
    return verdict


def _refusal(error: Exception) -> Verdict:
    is_ours = isinstance(error, PopdistError) and not isinstance(error, popart_internal_exception)
    text = str(error).partition("\n")[0] if is_ours else f"{type(error).__name__}: {error}"
    return Verdict("refused" if is_ours else "crash", text[:200])


def _passes(case: Case, proto: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime itself gives what the suite says."""
    return _compared(case, proto, proto).word == "same"


def _compared(case: Case, proto: onnx.ModelProto, made: onnx.ModelProto) -> Verdict:
    try:
        runs = session(made)
        for inputs, outputs in case.sets(proto):
            results = runs.run(None, _fed(runs, inputs))
            for one, wanted in zip(results, outputs, strict=True):
                if not _equal(one, wanted, case.rtol, case.atol):
                    return Verdict("differs")
    except Exception as error:  # noqa: BLE001 - onnxruntime raises several types
        return Verdict("crash", f"{type(error).__name__}: {error}"[:200])
    return Verdict("same")


def _fed(runs: onnxruntime.InferenceSession, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that a graph has; random numbers are zero."""
    found = {}
    for one in runs.get_inputs():
        if one.name in inputs:
            found[one.name] = inputs[one.name]
        elif one.name.startswith("Random"):
            found[one.name] = np.zeros(one.shape, _RANDOM_TYPES[one.type])
    return found


def _equal(one: Any, wanted: Any, rtol: float, atol: float) -> bool:
    if isinstance(wanted, list):
        return len(one) == len(wanted) and all(
            _equal(a, b, rtol, atol) for a, b in zip(one, wanted, strict=True)
        )
    if one is None or wanted is None:
        return one is wanted
    one, wanted = np.asarray(one), np.asarray(wanted)
    if one.dtype.kind in "OUS":
        return np.array_equal(one.astype(str), wanted.astype(str))
    # Computed indices have 32 bits, as in PopART.
    is_index = (one.dtype, wanted.dtype) == (np.int32, np.int64)
    if one.shape != wanted.shape or (one.dtype != wanted.dtype and not is_index):
        return False
    if one.dtype.kind not in "biufc":
        return bool(np.array_equal(one, wanted))
    return bool(np.allclose(one, wanted, rtol=rtol, atol=atol, equal_nan=True))


# Gradients.


@dataclass
class _Program:
    """A file with a loss: the weighed sum of its floating-point outputs.

    Attributes:
        proto: The file; what no gradient is compared of is an initializer.
        given: The inputs of the case, by name.
        values: Inputs beside them, away from edges.
    """

    proto: onnx.ModelProto
    given: dict[str, np.ndarray[Any, Any]]
    values: dict[str, np.ndarray[Any, Any]]


def gradients(case: Case) -> Verdict:
    """Whether gradients of all floating-point inputs are differences of the loss."""
    program = _program(case)
    if program is None:
        return Verdict("no float")
    try:
        found = _results(program)
    except Exception as error:  # noqa: BLE001 - whatever a case raises is its verdict
        verdict = _without_gradient(error)
    else:
        verdict = _by_judges(program, found)
    if verdict.word in ("same", "zero", "not finite") or _passes(case, onnx.load(case.path)):
        return verdict
    return Verdict("unjudged", verdict.detail)


def _without_gradient(error: Exception) -> Verdict:
    if isinstance(error, PopdistError) and error.code == "PD522":
        return Verdict("no rule", str(error).splitlines()[1].strip()[:200])
    return _refusal(error)


def _results(program: _Program) -> dict[str, Any]:
    """The loss and the gradients, at values where the loss is finite if there are any."""
    run = _compiled(program)
    found = run(program.values)
    if not np.isfinite(found[_LOSS]):
        # Values beside those of the case may lie outside of the operator's domain.
        program.values = program.given
        found = run(program.values)
    return found


def _by_judges(program: _Program, found: Mapping[str, Any]) -> Verdict:
    value, said = float(found[_LOSS]), []
    if not np.isfinite(value):
        return Verdict("not finite")
    is_half = any(one.dtype == np.float16 for one in program.values.values())
    for make, steps, tolerance in _JUDGES:
        try:
            judge = make(program)
            wanted = judge(program.values)
            if abs(value - wanted) <= (2e-2 if is_half else 1e-3) * max(1, abs(value)):
                return _judged(program, found, judge, steps, max(tolerance, 3e-2 * is_half))
            said.append(f"{make.__name__}: {wanted:.5g} for {value:.5g}")
        except Exception as error:  # noqa: BLE001, PERF203 - it lacks an operator or a type
            said.append(f"{make.__name__}: {type(error).__name__}")
    return Verdict("no judge", ", ".join(said))


_LOSS = "the suite's loss"


def _program(case: Case) -> _Program | None:
    proto = onnx.load(case.path)
    inputs, outputs = next(case.sets(proto), ({}, []))
    random = np.random.default_rng(5)
    parts = []
    for value, array in zip(list(proto.graph.output), outputs, strict=False):
        if value.type.tensor_type.elem_type not in _FLOATS:
            continue
        name = f"{value.name} of the loss"
        weights = random.uniform(0.5, 1.5, array.shape) * random.choice([-1, 1], array.shape)
        proto.graph.initializer.append(numpy_helper.from_array(weights.astype("f4"), f"{name}: w"))
        proto.graph.node.extend(
            [
                helper.make_node("Cast", [value.name], [f"{name}: x"], to=TensorProto.FLOAT),
                helper.make_node("Mul", [f"{name}: x", f"{name}: w"], [f"{name}: xw"]),
                helper.make_node("ReduceSum", [f"{name}: xw"], [name], keepdims=0),
            ]
        )
        parts.append(name)
    fixed = _settings(proto)
    floating = [
        value.name
        for value in proto.graph.input
        if value.type.tensor_type.elem_type in _FLOATS
        and value.name in inputs
        and value.name not in fixed
        and np.size(inputs[value.name])
    ]
    reads_text = any(
        value.type.tensor_type.elem_type == TensorProto.STRING for value in proto.graph.input
    )
    if not parts or not floating or reads_text:
        return None
    proto.graph.node.append(helper.make_node("Sum", parts, [_LOSS]))
    # The shapes that the file states for its outputs stay known.
    proto.graph.value_info.extend(proto.graph.output)
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info(_LOSS, TensorProto.FLOAT, []))
    if not any(one.domain in ("", "ai.onnx") for one in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("", 18))
    _state(proto, {k: v for k, v in inputs.items() if k not in floating})
    given = {name: np.asarray(inputs[name]) for name in floating}
    return _Program(proto, given, {name: _moved(one, case) for name, one in given.items()})


def _settings(proto: onnx.ModelProto) -> set[str]:
    """The inputs of the graph that only set something: no gradient is compared of them."""
    return {
        name
        for node in proto.graph.node
        for place, name in enumerate(node.input)
        if place in SETTINGS.get(node.op_type, ((), ""))[0]
    }


def _state(proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> None:
    """Makes inputs initializers, as exporters write axes, shapes and settings."""
    for name, content in inputs.items():
        if isinstance(content, np.ndarray) and content.dtype.kind in "biuf":
            (value,) = [one for one in proto.graph.input if one.name == name]
            proto.graph.input.remove(value)
            proto.graph.initializer.append(numpy_helper.from_array(content, name))


def _moved(array: np.ndarray[Any, Any], case: Case) -> np.ndarray[Any, Any]:
    """The values of an input, away from edges and equal numbers."""
    if array.size == 1 or fnmatch.fnmatchcase(case.name, "test_unique*"):
        return array
    random = np.random.default_rng(7)
    share = random.uniform(0, 1, array.shape)
    apart = (array == 0) * 2e-3 * random.choice([-1, 1], array.shape) * (0.5 + share)
    moved: np.ndarray[Any, Any] = (array * (1 - 2e-2 * share) + apart).astype(array.dtype)
    return moved


def _compiled(program: _Program) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The loss and the gradients, as a function of the inputs."""
    model = load(program.proto)
    lower(model, keep=differentiable(DOMAIN))
    random_inputs(model, training=False)
    running_statistics(model)
    autodiff(set_loss(model, _LOSS), outputs=list(program.values))
    runs = session(model)
    names = [one.name for one in runs.get_outputs()]
    return lambda values: dict(zip(names, runs.run(None, _fed(runs, values)), strict=True))


def _evaluator(program: _Program) -> Any:
    runs = ReferenceEvaluator(_doubled(program.proto))
    return lambda values: float(np.asarray(runs.run(None, _as_double(values))[0]))


def _double(program: _Program) -> Any:
    runs = session(_doubled(program.proto))
    return lambda values: float(runs.run(None, _fed(runs, _as_double(values)))[0])


def _single(program: _Program) -> Any:
    runs = session(program.proto)
    types = {name: one.dtype for name, one in program.values.items()}
    return lambda values: float(
        runs.run(None, _fed(runs, {k: v.astype(types[k]) for k, v in values.items()}))[0]
    )


# Some operators of the evaluator round to single precision, and steps may cross an edge: that
# one of several steps gives the gradient is enough, as a wrong one has none.
_JUDGES = (
    (_evaluator, (1e-6, 1e-8, 1e-4, 1e-2), 1e-3),
    (_double, (1e-6, 1e-8), 1e-3),
    (_single, (3e-3, 1e-2), 3e-2),
)


def _as_double(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.astype(np.float64) for name, one in values.items()}


def _judged(
    program: _Program,
    found: Mapping[str, Any],
    judge: Any,
    steps: Sequence[float],
    tolerance: float,
) -> Verdict:
    """Compares the slope along a random direction of each input."""
    random, wrong, flows = np.random.default_rng(9), [], False
    values = _as_double(program.values)
    for name, value in values.items():
        away = random.uniform(0.5, 1.5, value.shape) * random.choice([-1, 1], value.shape)
        gradient = found.get(f"Gradient___{name}")
        flows |= gradient is not None
        made = np.zeros(value.shape) if gradient is None else gradient.astype(np.float64)
        slope, norm = float((made * away).sum()), float(np.linalg.norm(made))
        seen = []
        for step in steps:
            ends = [judge({**values, name: value + sign * step * away}) for sign in (1, -1)]
            seen.append((ends[0] - ends[1]) / (2 * step))
            close = abs(slope - seen[-1]) <= tolerance * norm + 1e-5 * (gradient is not None)
            if close:
                break
        else:
            wrong.append(f"{name}: {slope:.5g} for {seen[0]:.5g}")
    if wrong:
        return Verdict("differs", "; ".join(wrong))
    return Verdict("same" if flows else "zero")


def _doubled(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A file in double precision."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    _double_graph(changed.graph)
    return changed


def _double_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _double_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _double_tensor(attribute.t)
            if attribute.name in ("to", "dtype") and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
            if attribute.HasField("g"):
                _double_graph(attribute.g)
            if attribute.name in ("value_float", "value_floats") and node.op_type == "Constant":
                single = attribute.name == "value_float"
                array = np.asarray(attribute.f if single else list(attribute.floats), np.float64)
                tensor = numpy_helper.from_array(array)
                attribute.CopyFrom(helper.make_attribute("value", tensor))


def _double_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
