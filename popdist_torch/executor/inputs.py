"""The arguments of a call: their fixed signature, and the rows that each micro-batch gets."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from popdist_torch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_torch.executor.batching import Batching


@dataclass(frozen=True)
class Signature:
    """What must stay the same from call to call.

    Attributes:
        structure: The nesting of positional and keyword arguments.
        leaves: For each leaf, the shape and type of a tensor, or the value of anything else.
    """

    structure: pytree.TreeSpec
    leaves: tuple[Any, ...]


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, flat.

    Attributes:
        signature: Their signature.
        values: The leaves.
        taken: When each micro-batch was taken, and when that was done, in seconds.
    """

    signature: Signature
    values: tuple[Any, ...]
    taken: list[tuple[float, float]] = field(default_factory=list, compare=False)

    def tensors(self) -> int:
        """How many tensors there are.

        Returns:
            Their number.
        """
        return sum(isinstance(value, torch.Tensor) for value in self.values)

    def micro_batch(self, part: int, batching: Batching) -> tuple[Any, Any]:
        """The arguments of one micro-batch.

        Args:
            part: Its place among those of the call.
            batching: The batch algebra.

        Returns:
            Positional and keyword arguments of the model.
        """
        started = time.perf_counter()
        rows = [_rows(value, part, batching) for value in self.values]
        self.taken.append((started, time.perf_counter()))
        args, kwargs = pytree.tree_unflatten(rows, self.signature.structure)
        return args, kwargs


def collect(
    args: Sequence[Any], kwargs: Mapping[str, Any], batching: Batching, device: torch.device
) -> Arguments:
    """Checks a call's arguments and brings them to the device.

    Args:
        args: Positional arguments; tensors of shape ``[D * A * R * mb, ...]`` among them.
        kwargs: Keyword arguments.
        batching: The batch algebra.
        device: Where the model runs.

    Returns:
        The arguments; tensors detached from any graph of the caller.

    Raises:
        BatchError: A tensor's first dimension does not divide.
    """
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    values = []
    described: list[Any] = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            batching.micro_batch(_length(leaf), f"input {index}, shape {tuple(leaf.shape)},")
            values.append(leaf.detach().to(device))
            described.append((leaf.shape, leaf.dtype))
        else:
            values.append(leaf)
            described.append(leaf)
    return Arguments(Signature(structure, tuple(described)), tuple(values))


def synthetic(arguments: Arguments) -> Arguments:
    """Replaces a call's tensors by generated ones, for measuring without loading any.

    Args:
        arguments: The call's arguments.

    Returns:
        The same shapes and types: floating-point numbers are drawn from a normal distribution, the
        same in every call; whole numbers are zero, which is a valid class, index or word.
    """
    generator = torch.Generator().manual_seed(0)

    def generated(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point():
            return torch.zeros_like(value)
        return torch.randn(value.shape, generator=generator).to(value)

    return Arguments(arguments.signature, tuple(map(generated, arguments.values)))


def require_callable_with(forward: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks that a model accepts the arguments, before anything runs.

    Args:
        forward: The model's ``forward``.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Raises:
        Error: An argument is missing or not known.
    """
    signature = inspect.signature(forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise Error(
            "PD305",
            "the model cannot be called with these arguments",
            value=str(error),
            accepted=f"forward{signature}",
        ) from error


def require_same(expected: Signature, seen: Signature) -> None:
    """Checks that a call has the signature of the first one.

    Args:
        expected: Of the first call.
        seen: Of this call.

    Raises:
        Error: They differ.
    """
    if expected == seen:
        return
    accepted, value = str(expected.structure), str(seen.structure)
    for index, (first, now) in enumerate(zip(expected.leaves, seen.leaves, strict=False)):
        if first != now:
            accepted, value = f"input {index}: {_shown(first)}", f"input {index}: {_shown(now)}"
            break
    raise Error(
        "PD305",
        f"the inputs have changed since the model was compiled: expected {accepted} but got "
        f"{value}",
        hint="keep every batch full (drop_last=True) or pad the last one; destroy() lets the next "
        "call set new shapes",
    )


def _length(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 1


def _rows(value: Any, part: int, batching: Batching) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    size = value.shape[0] // batching.parts
    return value.narrow(0, part * size, size)


def _shown(leaf: Any) -> str:
    if isinstance(leaf, tuple) and leaf and isinstance(leaf[0], torch.Size):
        return f"{leaf[0]} {leaf[1]}"
    return repr(leaf)
