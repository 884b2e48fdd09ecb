"""The gradient exchange that the torch and the ONNX adapter share.

`buckets` plans, from sizes alone, the layout of gradients in flat buffers and the slices that are
exchanged, and allocates the buffers. `allreduce` sums the slices with the real Horovod, or with
`mpi`, where no framework is installed that Horovod could be built for.
"""

from __future__ import annotations

from popdist.exchange.allreduce import Exchange, gather, on_array
from popdist.exchange.buckets import (
    DEFAULT_SLICE_BYTES,
    DEFAULT_TAIL_BYTES,
    DEFAULT_ZERO_COPY_BYTES,
    Item,
    Plan,
    Slice,
    Slot,
    allocate,
    plan,
    views,
)

__all__ = [
    "DEFAULT_SLICE_BYTES",
    "DEFAULT_TAIL_BYTES",
    "DEFAULT_ZERO_COPY_BYTES",
    "Exchange",
    "Item",
    "Plan",
    "Slice",
    "Slot",
    "allocate",
    "gather",
    "on_array",
    "plan",
    "views",
]
