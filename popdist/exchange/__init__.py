"""The gradient exchange that the torch and the ONNX adapter share.

`planner` decides, from sizes alone, how gradients lie in flat buffers and in which slices those
travel; `arenas` allocates the buffers; `allreduce` moves the slices over the real Horovod;
`agreement` finds out whether all instances mean the same thing before the first of them moves.
"""

from __future__ import annotations

from popdist.exchange.agreement import Disagreement, disagreements
from popdist.exchange.allreduce import Exchange
from popdist.exchange.buckets import (
    DEFAULT_LENT_BYTES,
    DEFAULT_SLICE_BYTES,
    DEFAULT_TAIL_BYTES,
    Item,
    Plan,
    Slice,
    Slot,
    allocate,
    plan,
    views,
)

__all__ = [
    "DEFAULT_LENT_BYTES",
    "DEFAULT_SLICE_BYTES",
    "DEFAULT_TAIL_BYTES",
    "Disagreement",
    "Exchange",
    "Item",
    "Plan",
    "Slice",
    "Slot",
    "allocate",
    "disagreements",
    "plan",
    "views",
]
