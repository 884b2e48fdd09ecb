"""Tensors that a program creates on the device ``"ipu"``, which are the processor's here.

torch has the device type, and no operators for it. The two that allocate memory are enough for all
functions that create tensors, and for ``to("ipu:0")``, as others fill what these return.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


@cache
def register() -> Any:
    """Registers the operators; a second call does nothing.

    Returns:
        The library, which keeps them registered.
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("empty.memory_format", _empty, "IPU")
    library.impl("empty_strided", _empty_strided, "IPU")
    return library


def _empty(
    size: Sequence[int], *, dtype: Any = None, memory_format: Any = None, **_: Any
) -> torch.Tensor:
    order = memory_format or torch.contiguous_format
    return torch.empty(size, dtype=dtype, memory_format=order, device="cpu")


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, **_: Any
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
