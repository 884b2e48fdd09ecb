"""Which state tensors a run may overwrite while it reads them. Pure.

ONNX Runtime may run nodes in any order that data flow allows. Overwriting is safe where all readers
of a tensor come before the node that writes its next value by data flow, and where that node reads
it, if at all, element by element. ONNX Runtime also fuses neighbouring nodes; the fused node is
element by element again where both were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.graph import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.runtime.reading import Spec, Step

_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Sum", "Identity", "Max", "Sqrt", "Where"})
"""Operators of optimizers that compute each element from the operands' same elements."""


def overwritable(
    steps: Sequence[Step], states: Sequence[str], specs: dict[str, Spec]
) -> frozenset[str]:
    """Finds the states that may live in one buffer.

    Args:
        steps: The steps of the stage that writes them.
        states: States that are written there.
        specs: Type and shape of the tensors.

    Returns:
        Those of the states for which it is safe.
    """
    index_of = {name: i for i, step in enumerate(steps) for name in step.writes}
    return frozenset(state for state in states if _safe(state, steps, index_of, specs))


def _safe(
    state: str, steps: Sequence[Step], index_of: dict[str, int], specs: dict[str, Spec]
) -> bool:
    last = index_of.get(names.updated(state))
    if last is None:
        return False
    writer = steps[last]
    before = _before(last, steps, index_of)
    for i, step in enumerate(steps):
        if state not in step.reads:
            continue
        if i != last and i not in before:
            return False
        next_to_it = i == last or not writer.reads.isdisjoint(step.writes)
        if next_to_it and not _elementwise(step, state, specs):
            return False
    return True


def _elementwise(step: Step, state: str, specs: dict[str, Spec]) -> bool:
    if step.node.op_type not in _ELEMENTWISE or step.node.domain not in {"", "ai.onnx"}:
        return False
    shape = specs[state].shape
    return all(name in specs and specs[name].shape == shape for name in step.writes)


def _before(last: int, steps: Sequence[Step], index_of: dict[str, int]) -> set[int]:
    found: set[int] = set()
    open_steps = [last]
    while open_steps:
        for name in steps[open_steps.pop()].reads:
            index = index_of.get(name)
            if index is not None and index not in found:
                found.add(index)
                open_steps.append(index)
    return found
