"""A case of the conformance table: one node, and combinations of its attributes."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

OPSETS = range(6, 12)
"""What PopART's builder has."""

EXHAUSTIVE = bool(os.environ.get("POPDIST_EXHAUSTIVE"))

RANDOM = np.random.default_rng(11)


@dataclass(eq=False)
class Case:
    """One node.

    Attributes:
        op_type: The operator.
        inputs: Operands; None leaves one out.
        attributes: Its attributes.
        outputs: How many outputs it has.
        since: The opsets in which it exists so.
        until: The last of them.
        torch: What torch makes of the operands in float64; without, ONNX's reference evaluator
            says what the node does, and differences of it what its slope is.
        slope: Whether there is a gradient to compare.
        awkward: Whether the point is one that formulas stumble over.
        tolerance: Relative to the largest element.
        read: Which outputs are compared; None takes all.
        fixed: Which floating-point inputs are constants of the graph.
        domain: The operator's domain.
        dtype: The type of its floating-point inputs.
        by_differences: Whether the slope is that of differences of the forward function, because
            torch's own gradient is another one.
    """

    op_type: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    since: int = 6
    until: int = 11
    torch: Callable[..., Any] | None = None
    slope: bool = True
    awkward: bool = False
    tolerance: float = 3e-5
    read: Sequence[int] | None = None
    fixed: Sequence[int] = ()
    domain: str = ""
    dtype: str = "float32"
    by_differences: bool = False


def pairs(**values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Combinations in which every two values of two names meet once at least.

    Args:
        **values: Values by name; `OUT` leaves a name out.

    Yields:
        Settings by name.
    """
    names = list(values)
    products = [dict(zip(names, one, strict=True)) for one in itertools.product(*values.values())]
    seen: set[Any] = set()
    order = (
        range(len(products)) if EXHAUSTIVE else np.random.default_rng(0).permutation(len(products))
    )
    for index in order:
        one = products[index]
        places = [(name, values[name].index(one[name])) for name in names]
        meets = set(itertools.combinations(places, 2)) or set(places)
        if EXHAUSTIVE or meets - seen:
            seen |= meets
            yield {name: value for name, value in one.items() if value is not OUT}


OUT = "left out"


def f(*shape: int) -> np.ndarray:
    """Numbers that are different, and no whole or half ones."""
    return np.asarray(RANDOM.standard_normal(shape), np.float32)


def ints(*numbers: int, dtype: Any = np.int64) -> np.ndarray:
    return np.array(numbers, dtype)


# Points of operators with one operand.

ANYWHERE = np.array([-30, -3, -1.5, -1, -0.5, -1e-6, 0, 1e-6, 0.5, 1, 1.5, 3, 30], np.float32)
WITHIN = np.array([-0.999, -0.5, -1e-6, 0, 0.3, 0.999], np.float32)
POSITIVE = np.array([1e-6, 0.1, 1, 2.5, 1e6], np.float32)
FROM_ONE = np.array([1.001, 1.5, 4, 1e4], np.float32)
