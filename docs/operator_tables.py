"""The generated tables of docs/onnx-operators.md and docs/onnx-builder.md."""

from __future__ import annotations

import dataclasses
import sys
from enum import Enum
from pathlib import Path

import onnx

from popdist_onnx.builder.graphcore_methods import METHODS
from popdist_onnx.gradients.registry import (
    WITHOUT_FLOAT16,
    WITHOUT_FLOAT64,
    Rule,
    differentiable,
    find_rule,
)
from popdist_onnx.lowering import DOMAIN
from popdist_onnx.types.session_options import SessionOptions

sys.path.insert(0, str(Path(__file__).parent.parent))  # the tests are a part of the checkout

from tests.popdist_onnx.conformance.case import OPSETS, Case
from tests.popdist_onnx.conformance.cases import (
    ELSEWHERE,
    EXCLUDED,
    WITHOUT_CASE,
    all_cases,
    opsets_of,
    version,
)
from tests.popdist_onnx.conformance.graphcore import ELSEWHERE as GRAPHCORE
from tests.popdist_onnx.conformance.graphcore import WITHOUT_CASE as GRAPHCORE_WITHOUT_CASE
from tests.popdist_onnx.conformance.graphcore import graphcore_cases
from tests.popdist_onnx.conformance.runner import wanted
from tests.popdist_onnx.conformance.typed import FLOATS, INTEGERS, typed_cases

_CASES = [*all_cases(), *graphcore_cases()]

_WHOLE_NUMBERS = ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXnor", "BitwiseXor")
_ZERO = {
    "Round": "zero",
    "Abort": "none: it has no outputs",
    "Init": "none: it has no inputs",
    "CtcBeamSearchDecoder": "none: it decides between labels",
}


def graphcore_table() -> str:
    """The operators of ``ai.graphcore``: whether they run, and what their gradient is."""
    rows = ["| `aiGraphcore.` | Operator | What it does | Gradient |", "|---|---|---|---|"]
    for method in METHODS:
        summary, gradient = method.summary, _graphcore_gradient(method.op_type)
        rows.append(f"| `{method.name}` | `{method.op_type}` | {summary} | {gradient} |")
    return "\n".join(rows)


def _graphcore_gradient(op_type: str) -> str:
    if (rule := find_rule(DOMAIN, op_type)) is not None:
        return "a rule of its own" if rule.function is not None else f"none: {rule.reason}"
    if op_type in _WHOLE_NUMBERS:
        return "none: whole numbers"
    return _ZERO.get(op_type, "that of what it becomes")


def gradients_table() -> str:
    """The operators of ``ai.onnx``: which have a gradient, in what, and in which types."""
    found = {op_type: find_rule("", op_type) for op_type in sorted(differentiable(""))}
    rules = {op_type: rule for op_type, rule in found.items() if rule is not None}
    rows = ["| Operator | Gradient | float16 | float64 |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {_flows(rule)} | {_types(name, WITHOUT_FLOAT16)} "
        f"| {_types(name, WITHOUT_FLOAT64)} |"
        for name, rule in rules.items()
        if rule.function is not None
    ]
    rows += [
        f"| {', '.join(f'`{name}`' for name in names)} | none: {reason} | - | - |"
        for reason, names in _by_reason(rules).items()
    ]
    return "\n".join(rows)


def conformance_table() -> str:
    """The operators of ``ai.onnx`` 6 to 11: what of them is compared, and with what."""
    rows = [
        "| Operator | Changed in opset | Forward | Gradient | Awkward points | Types compared |",
        "|---|---|---|---|---|---|",
    ]
    compared = _CASES
    typed = _typed_runs()
    names = {one.name for one in onnx.defs.get_all_schemas_with_history() if not one.domain}
    for name in sorted(names):
        versions = sorted({version(name, opset) for opset in OPSETS} - {0})
        if not versions:
            continue
        changed = ", ".join(str(max(one, OPSETS[0])) for one in versions)
        cases = [case for case in compared if case.op_type == name and not case.domain]
        if cases:
            rows.append(f"| `{name}` | {changed} | {_compared(cases)}{_types_of(name, typed)} |")
        else:
            why = EXCLUDED.get(name) or f"compared in `{ELSEWHERE[name]}`"
            rows.append(f"| `{name}` | {changed} | {why} | - | - | - |")
    for method in METHODS:
        name, shown = method.op_type, f"`aiGraphcore.{method.name}`"
        cases = [case for case in compared if case.domain and case.op_type == name]
        if cases:
            rows.append(f"| {shown} | - | {_compared(cases)}{_types_of(name, typed, DOMAIN)} |")
        else:
            rows.append(f"| {shown} | - | compared in `{GRAPHCORE[name]}` | - | - | - |")
    return "\n".join(rows)


def _typed_runs() -> dict[tuple[str, str], list[str]]:
    """The types besides single precision in which an operator is compared."""
    found: dict[tuple[str, str], list[str]] = {}
    for dtype in (*FLOATS, *INTEGERS):
        for case, _ in typed_cases(dtype):
            kinds = found.setdefault((case.domain, case.op_type), [])
            if dtype not in kinds:
                kinds.append(dtype)
    return found


def _types_of(name: str, typed: dict[tuple[str, str], list[str]], domain: str = "") -> str:
    """Those types, and the reasons for floating-point types that are missing."""
    kinds = typed.get((domain, name), [])
    seen = {
        one.dtype.name
        for case in _CASES
        if (case.domain, case.op_type) == (domain, name)
        for one in case.inputs
        if one is not None
    }
    shown = [one for one in kinds if one not in seen]
    lost = [f"{one}: no kernel" for one, without in FLOATS.items() if name in without]
    return "".join(f", {one}" for one in (*shown, *lost))


def _compared(cases: list[Case]) -> str:
    runs = [case for case in cases for _ in opsets_of(case)]
    sources = [
        ("torch", sum(case.torch is not None for case in runs)),
        ("ONNX", sum(case.torch is None for case in runs)),
    ]
    forward = ", ".join(f"{count} with {source}" for source, count in sources if count)
    slopes = [case for case in runs if wanted(case)]
    by_torch = sum(case.torch is not None for case in slopes)
    parts = [(by_torch, "with torch"), (len(slopes) - by_torch, "with differences")]
    gradient = ", ".join(f"{count} {how}" for count, how in parts if count)
    rule = find_rule(cases[0].domain, cases[0].op_type)
    if not gradient:
        gradient = f"none: {rule.reason}" if rule is not None and rule.reason else "none"
    awkward = sum(case.awkward for case in runs)
    types = {one.dtype.name for case in cases for one in case.inputs if one is not None}
    return f"{forward} | {gradient} | {awkward or '-'} | {', '.join(sorted(types))}"


def excluded_attributes_list() -> str:
    """The attributes that no case of the conformance tests gives, and why."""
    reasons = [*WITHOUT_CASE.items(), *GRAPHCORE_WITHOUT_CASE.items()]
    return "\n".join(f"- `{name}`, `{attribute}`: {why}." for (name, attribute), why in reasons)


def _flows(rule: Rule) -> str:
    if rule.inputs is None:
        return "all inputs"
    return "input " + ", ".join(str(index) for index in sorted(rule.inputs))


def _types(name: str, without: frozenset[str]) -> str:
    return "no kernel" if name in without else "yes"


def _by_reason(rules: dict[str, Rule]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, rule in rules.items():
        if rule.function is None:
            found.setdefault(rule.reason, []).append(name)
    return found


def session_options_table() -> str:
    """The session options that change something on a host."""
    rows = ["| Option | Default | Meaning |", "|---|---|---|"]
    for field in dataclasses.fields(SessionOptions):
        if field.metadata["setting"].effect:
            default = field.default
            shown = (
                f"{type(default).__name__}.{default.name}" if isinstance(default, Enum) else default
            )
            if default is dataclasses.MISSING:
                shown = "an object with options of its own"
            rows.append(f"| `{field.name}` | {shown} | {field.metadata['setting'].meaning} |")
    return "\n".join(rows)


def stored_options_list() -> str:
    """The session options that are kept, and change nothing on a host."""
    stored = [
        f"`{field.name}`"
        for field in dataclasses.fields(SessionOptions)
        if not field.metadata["setting"].effect
    ]
    return ", ".join(sorted(stored, key=str.lower)) + "."
