"""The generated tables of docs/onnx-operators.md and docs/onnx-builder.md."""

from __future__ import annotations

import dataclasses
from enum import Enum

from popdist_onnx.builder.graphcore_methods import METHODS
from popdist_onnx.gradients import load_rules
from popdist_onnx.gradients.registry import RULES, WITHOUT_FLOAT16, WITHOUT_FLOAT64, Rule
from popdist_onnx.lowering import DOMAIN
from popdist_onnx.lowering.registry import REFUSED
from popdist_onnx.types import SessionOptions

_WHOLE_NUMBERS = ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXnor", "BitwiseXor")
_ZERO = {"Round": "zero", "Init": "none: it has no inputs"}


def graphcore_table() -> str:
    """The operators of ``ai.graphcore``: whether they run, and what their gradient is."""
    load_rules()
    rows = ["| `aiGraphcore.` | Operator | What it does | Gradient |", "|---|---|---|---|"]
    for method in METHODS:
        summary, gradient = method.summary, _graphcore_gradient(method.op_type)
        if method.op_type in REFUSED:
            why, instead = REFUSED[method.op_type]
            summary, gradient = f"**refused**: {why}; {instead}", "-"
        rows.append(f"| `{method.name}` | `{method.op_type}` | {summary} | {gradient} |")
    return "\n".join(rows)


def _graphcore_gradient(op_type: str) -> str:
    if (rule := RULES.get((DOMAIN, op_type))) is not None:
        return "a rule of its own" if rule.function is not None else f"none: {rule.reason}"
    if op_type in _WHOLE_NUMBERS:
        return "none: whole numbers"
    return _ZERO.get(op_type, "that of what it becomes")


def gradients_table() -> str:
    """The operators of ``ai.onnx``: which have a gradient, in what, and in which types."""
    load_rules()
    rules = {op_type: rule for (domain, op_type), rule in sorted(RULES.items()) if not domain}
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
