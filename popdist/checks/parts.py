"""The additivity of a batch: whether gradients of its parts add up to the gradient of the whole.

A job divides a global batch into micro-batches, and combines their gradients by a mean. That is
the gradient of one process with all rows exactly if the gradient of a whole micro-batch is the mean
of the gradients of its halves. An adapter measures these gradients and hands in three inner
products for each parameter; the judgement needs nothing else, and no framework.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

UPDATES = frozenset({1, 8, 64})
"""Updates after which gradients are measured: weights that begin at zero hide losses at first."""

HALVES = 2

DOUBLE = 1e-4
"""The largest relative difference of gradients in float64; rounding is below 1e-8."""

SINGLE = 5e-3
"""The largest relative difference of gradients in float32, where rounding can reach 1e-4."""

_NEGLIGIBLE = {DOUBLE: 1e-7, SINGLE: 1e-2}
"""Share of the largest gradient below which rounding may be all of a parameter's gradient."""


@dataclass(frozen=True)
class Products:
    """Inner products of two gradients of one parameter, in float64.

    Attributes:
        name: The parameter.
        whole: Of the gradient of the whole with itself.
        parts: Of the mean of the gradients of the parts with itself.
        both: Of the two with each other.
    """

    name: str
    whole: float
    parts: float
    both: float


@dataclass(frozen=True)
class Finding:
    """A batch whose parts do not add up.

    Attributes:
        name: The parameter with the largest difference.
        difference: The norm of the difference by the sum of both norms, so 1 at most.
        factor: The whole by the mean of the parts, where they differ by a constant only.
    """

    name: str
    difference: float
    factor: float | None

    @property
    def seen(self) -> str:
        """The measurement in words."""
        if self.factor is not None:
            return f"the whole is {self.factor:.4g} times the mean of the halves"
        return f"the gradient of {self.name} differs by {self.difference:.2g} of its size"


CAUSE = (
    "the gradients of the halves of a micro-batch do not add up to the gradient of the whole, so "
    "replicas train another model than one process with the global batch"
)

FIXES = (
    "divide sums by counts of the global batch ({global_mean}); or gather the rows that the loss "
    "compares ({gather}); or set POPDIST_SKIP_CHECKS=parts where each replica's own loss is meant"
)


def judge(
    products: Iterable[Products], tolerance: float, *, any_factor: bool = False
) -> Finding | None:
    """Compares the gradient of a whole with the mean of the gradients of its parts.

    Args:
        products: The inner products of every parameter.
        tolerance: `DOUBLE` or `SINGLE`, by the type in which gradients were computed.
        any_factor: Whether a constant factor for all parameters is accepted.

    Returns:
        The largest difference; None where there is none, or where gradients are not finite.
    """
    rows = list(products)
    total = [
        sum(values) for values in zip(*((r.whole, r.parts, r.both) for r in rows), strict=True)
    ]
    if not total or not all(map(math.isfinite, total)) or not max(total[:2]) > 0:
        return None
    floor = _NEGLIGIBLE[tolerance] * math.sqrt(max(max(row.whole, row.parts) for row in rows))
    worst, name = 0.0, ""
    for row in rows:
        apart = math.sqrt(max(row.whole + row.parts - 2 * row.both, 0.0))
        difference = apart / (math.sqrt(row.whole) + math.sqrt(row.parts) + floor)
        if difference > worst:
            worst, name = difference, row.name
    if worst <= tolerance:
        return None
    whole, parts, both = total
    factor = both / parts if parts > 0 else 0.0
    rest = max(whole - 2 * factor * both + factor * factor * parts, 0.0)
    constant = factor > 0 and math.sqrt(rest) <= tolerance * math.sqrt(whole)
    if constant and any_factor:
        return None
    return Finding(name, worst, factor if constant else None)
