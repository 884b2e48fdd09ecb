"""Tables that describe a model."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from typing import TYPE_CHECKING

from popdist_onnx.gradients.registry import rule_of
from popdist_onnx.graph import names
from popdist_onnx.lowering.registry import OPERATORS
from popdist_onnx.transforms.accumulate import updaters
from popdist_onnx.transforms.autodiff import variables
from popdist_onnx.transforms.quantization import pair_quantization, stored_integers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import onnx_ir as ir

_SHOWN = 3


def training_summary(model: ir.Model) -> str:
    """A table of a training graph's parts, and a table of its weights."""
    parts = Counter(_part(node) for node in model.graph)
    weights = list(variables(model.graph))
    trained = updaters(model)
    states = [n for n in model.graph.initializers if n.startswith(names.RESERVED)]
    rows = [(part, str(count), "nodes") for part, count in parts.items()]
    rows += [
        ("weights", str(len(weights)), f"{_elements(weights):,} elements"),
        ("trained", str(len(trained)), f"{_elements([w for w in weights if w.name in trained]):,}"),
        ("optimizer state", str(len(states)), ", ".join(sorted({_kind(s) for s in states}))),
    ]
    per_weight = [
        (str(w.name), _described(w), str(trained[str(w.name)].name) if w.name in trained else "-")
        for w in weights
    ]
    return "\n".join(
        (
            table(("Part", "Number", ""), rows),
            "",
            table(("Weight", "Type and shape", "Gradient"), per_weight),
        )
    )


def weight_summary(model: ir.Model, trained: Collection[str]) -> str:
    """A table of weights, with counts of trained and other elements.

    Weights are floating-point initializers, and those that quantized models store as whole numbers.
    """
    frozen = json.loads(model.metadata_props.get(names.FROZEN, "[]"))
    rows, counts = [], {True: 0, False: 0}
    whole = set(stored_integers(model))
    for name, weight in model.graph.initializers.items():
        if name in whole:
            counts[False] += _elements([weight])
            rows.append((name, _described(weight), "not trained: stored as whole numbers"))
        if weight.dtype is None or not weight.dtype.is_floating_point():
            continue
        counts[name in trained] += _elements([weight])
        if name in trained:
            says = "trained"
        elif any(_is_statistic(*use) for use in weight.uses()):
            says = "running statistic"
        elif name in frozen:
            says = "frozen"
        else:
            says = "not trained: a constant, or without a gradient"
        if name.startswith(_GENERATED) and weight.uses():
            reader = weight.consumers()[0]
            says += f"; read by {reader.name or reader.op_type}"
        rows.append((name, _described(weight), says))
    total = f"{counts[True]:,} numbers are trained, {counts[False]:,} are not"
    return table(("Weight", "Type and shape", ""), rows) + "\n" + total


_GENERATED = ("onnx::", "val_")
"""How names begin that exporters give to weights which they have rewritten."""

_STATISTICS = (3, 4)


def _is_statistic(node: ir.Node, index: int) -> bool:
    return node.op_type == "BatchNormalization" and index in _STATISTICS


def operator_report(model: ir.Model) -> tuple[str, bool]:
    """A table of operators with their gradient rules, and whether no rule is missing."""
    pair_quantization(model)
    found: dict[tuple[str, str], list[ir.Node]] = {}
    for node in model.graph:
        found.setdefault((node.domain or "ai.onnx", node.op_type), []).append(node)
    rows = []
    for (domain, op_type), nodes in sorted(found.items()):
        rule = rule_of(nodes[0])
        if rule is None and op_type in OPERATORS and domain == "ai.graphcore":
            says = "yes, through the operators it is made of"
        elif rule is None:
            where = [str(node.name or node.outputs[0].name) for node in nodes[:_SHOWN]]
            says = f"NO: {', '.join(where)}"
        else:
            says = "yes" if rule.function is not None else f"passes none: {rule.reason}"
        rows.append((f"{domain}.{op_type}", str(len(nodes)), says))
    text = table(("Operator", "Nodes", "Gradient"), rows)
    return text, not any(row[2].startswith("NO") for row in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Text of aligned columns."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, ["-" * width for width in widths], *rows)
    ]
    return "\n".join(lines)


def _part(node: ir.Node) -> str:
    if node.op_type in {"GradCopyToHost", "GradCopyFromHost", "Sync"}:
        return "exchange"
    if node.metadata_props.get(names.PHASE) == "update":
        return "update"
    return node.metadata_props.get(names.PASS, "forward")


def _elements(values: Sequence[ir.Value]) -> int:
    shapes = [v.const_value.shape.numpy() for v in values if v.const_value is not None]
    return sum(prod(int(d) for d in shape) for shape in shapes)


def _described(value: ir.Value) -> str:
    content = value.const_value
    if content is None:
        return "-"
    return f"{content.dtype.name} {list(content.shape.numpy())}"


def _kind(state: str) -> str:
    return next(prefix for prefix in names.RESERVED if state.startswith(prefix)).rstrip("_")
