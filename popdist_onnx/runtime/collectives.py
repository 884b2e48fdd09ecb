"""Horovod's collectives on numpy arrays, through its PyTorch binding."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist_onnx.errors import popart_exception
from popdist_onnx.runtime.allreduce import require_agreement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from popdist_onnx.runtime.cells import Array

# `isbuiltin` of types that numpy was taught, such as bfloat16.
_TAUGHT = 2


def running() -> Any | None:
    """The Horovod that connects this process with others.

    Returns:
        The module ``horovod.torch``, initialised: by the program, or else here under a launcher;
        None in a process that is alone.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """
    started = sys.modules.get("horovod.torch")
    if started is not None and hasattr(started, "init") and started.is_initialized():
        return started
    from popdist.exchange import connect

    return connect()


def moved(array: Array, collective: Callable[[Any], Any]) -> Array:
    """Lets a collective that only moves content work on an array of any type.

    Args:
        array: This process's array.
        collective: From a tensor to a tensor.

    Returns:
        The result, of the array's type; of its shape too, where it has as many elements.
    """
    import torch

    array = np.asarray(array)
    # Horovod wants a dimension, and knows no bfloat16: its bits travel as they are.
    flat = np.ascontiguousarray(array).reshape(array.shape or (1,)).copy()
    raw = flat.view(np.int16) if array.dtype.isbuiltin == _TAUGHT else flat
    result = collective(torch.from_numpy(raw)).numpy().view(array.dtype)
    return result.reshape(array.shape) if result.size == array.size else np.asarray(result)


def combined(array: Array, collective: Callable[[Any], Any]) -> Array:
    """Lets a collective that calculates work on an array.

    Args:
        array: This process's array; bfloat16 is calculated in float32.
        collective: From a tensor to a tensor of the same shape.

    Returns:
        The result, of the array's type and shape.
    """
    array = np.asarray(array)
    if array.dtype.isbuiltin != _TAUGHT:
        return moved(array, collective)
    return moved(array.astype(np.float32), collective).astype(array.dtype)


def broadcast_tensors(data: Mapping[str, Array], root_rank: int, horovod: Any) -> dict[str, Array]:
    """Gives all processes the tensors of one of them.

    Args:
        data: This process's tensors by name.
        root_rank: Whose tensors.
        horovod: The module ``horovod.torch``, initialised.

    Returns:
        The tensors of that process.

    Raises:
        popart_exception: There is no such process, or the processes have other tensors.
    """
    require_rank(root_rank, horovod.size())
    require_agreement(
        {f"variable {n}": f"{a.dtype.name} {list(a.shape)}" for n, a in data.items()}, horovod
    )

    def broadcast(name: str, array: Array) -> Array:
        label = f"popdist_onnx.broadcast.{name}"
        return moved(array, lambda tensor: horovod.broadcast(tensor, root_rank, name=label))

    return {name: broadcast(name, array) for name, array in data.items()}


def require_rank(rank: int, size: int) -> None:
    """Checks a rank.

    Args:
        rank: The rank.
        size: The number of processes.

    Raises:
        popart_exception: There is no process of this rank.
    """
    if not 0 <= rank < size:
        raise popart_exception(
            "PD578", "there is no process of this rank", value=rank, accepted=f"0 to {size - 1}"
        )
