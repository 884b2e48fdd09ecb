"""Gradients, and what a program's code makes of them, compared with multiples of them."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from popdist_torch.replica_gradients.parameter_hooks import close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUESTIONS = 8
"""Calls of a function that are checked."""

_POWERS = (16.0, 0.0625)


def in_proportion(
    function: Callable[..., Any], args: Any, made: Any, streams: Streams
) -> bool | None:
    """Whether a function makes of gradients times a power of two its result times that power.

    Args:
        function: Returns its result for arguments; it may write to them.
        args: What it was called with.
        made: The result for them.
        streams: The random numbers before that call.

    Returns:
        None where it does not make the same result of the same gradients either.
    """
    now = Streams.of(args)
    try:
        with torch.no_grad():
            for power in _POWERS:
                streams.restore()
                if not equal(function(*scaled(args, power)), scaled(made, power)):
                    streams.restore()
                    return False if equal(function(*scaled(args, 1.0)), made) else None
    finally:
        now.restore()
    return True


class Streams:
    """The states of torch's random streams that code on some tensors' devices uses."""

    def __init__(self, host: torch.Tensor, devices: dict[torch.device, torch.Tensor]) -> None:
        self._host, self._devices = host, devices

    @classmethod
    def of(cls, args: Any) -> Streams:
        """The present states."""
        devices = {tensor.device for tensor in tensors(args) if tensor.is_cuda}
        return cls(
            torch.get_rng_state(), {device: torch.cuda.get_rng_state(device) for device in devices}
        )

    def restore(self) -> None:
        """Sets them."""
        torch.set_rng_state(self._host)
        for device, state in self._devices.items():
            torch.cuda.set_rng_state(state, device)


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """All tensors of some values."""
    leaves: list[Any] = pytree.tree_leaves(values)
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def plain(args: tuple[Any, ...]) -> bool:
    """Whether a hook's gradients are dense and have no graph, outside of transforms."""
    return not torch.compiler.is_compiling() and all(
        type(value) is torch.Tensor
        and not value.requires_grad
        and not value.is_sparse
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)  # noqa: SLF001 - torch's own test
        for value in tensors(args)
    )


def versions(args: Any) -> list[int]:
    """How often each tensor was written to."""
    return [value._version for value in tensors(args)]  # noqa: SLF001 - no public name


def scaled(values: Any, factor: float) -> Any:
    """Copies of all tensors of some values, times a factor."""
    return pytree.tree_map_only(torch.Tensor, functools.partial(operator.mul, factor), values)


def pairs(one: Any, other: Any) -> list[tuple[Any, Any]]:
    """The tensors of two results beside each other; a tensor is a tuple of one."""
    ones, others = ([v] if isinstance(v, torch.Tensor) else [*v] for v in (one, other))
    return [
        pair
        for pair in zip(ones, others, strict=False)
        if all(isinstance(value, torch.Tensor) for value in pair)
    ]


def differ(made: Any, given: Any) -> bool:
    """Whether any gradient was changed, and all of them are finite."""
    both = pairs(made, given)
    return _finite(both) and any(
        one.shape != other.shape or not torch.equal(one, other) for one, other in both
    )


def equal(answer: Any, expected: Any) -> bool:
    """Whether an answer is what it should be, or is too large or too small to say."""
    both = pairs(answer, expected)
    return not _finite(both) or all(close(one, other) for one, other in both)


def _finite(both: list[tuple[Any, Any]]) -> bool:
    return all(torch.isfinite(value).all() for pair in both for value in pair)
