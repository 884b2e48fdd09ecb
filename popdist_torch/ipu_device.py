"""Tensors that a program creates on the device ``"ipu"``, which are the processor's here.

torch has the device type, and no operators for it. The two that allocate memory are enough for all
functions that create tensors, and for ``to("ipu:0")``, as others fill what these return.

Where the device has no number, as in ``torch.tensor(1, device="ipu")``, torch asks a table of its
C++ library which device of the type is current. The entry of the processor, whose answer is the
processor, serves for this type too.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
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
    _share_current_device()
    return library


_TABLE = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry


def _share_current_device() -> None:
    """Enters the processor's guard for the type, if torch has the table and a free entry."""
    kinds = torch._C._autograd.DeviceType  # noqa: SLF001 - the numbers of device types
    cpu, ipu = int(kinds.CPU.value), int(kinds.IPU.value)  # type: ignore[attr-defined]
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        table = (ctypes.c_void_p * (ipu + 1)).in_dll(library, _TABLE)
    except (OSError, ValueError):
        return  # another torch: "ipu:0" is known to it, and "ipu" is refused by torch
    if table[cpu] and not table[ipu]:
        table[ipu] = table[cpu]


def _empty(
    size: Sequence[int], *, dtype: Any = None, memory_format: Any = None, **_: Any
) -> torch.Tensor:
    order = memory_format or torch.contiguous_format
    return torch.empty(size, dtype=dtype, memory_format=order, device="cpu")


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, **_: Any
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
