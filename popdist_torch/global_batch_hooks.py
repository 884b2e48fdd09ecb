"""Hooks of activations that act as in one process with the rows of all replicas.

The loss of a replica is the mean of its own rows, so its gradients of activations are larger than
in one process: by the number of replicas, and of the micro-batches that are averaged. A hook that
clips or normalizes acts at another size then. The parts probe (`popdist_torch.checks`) finds such
hooks; `global_batch_hook` gives them the gradients of one process.
"""

from __future__ import annotations

import functools
import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Enlargement:
    """How many times larger than in one process the gradients of this process are now.

    Attributes:
        factor: It is read where a call would cost small steps more.
    """

    factor = 1.0


def enlarge(factor: float) -> None:
    """Sets the factor of all backward passes that no `enlarged` wraps."""
    Enlargement.factor = factor


@contextmanager
def enlarged(factor: float) -> Iterator[None]:
    """Wraps a backward pass whose gradients are larger by a factor."""
    before, Enlargement.factor = Enlargement.factor, factor
    try:
        yield
    finally:
        Enlargement.factor = before


class OfGlobalBatch:
    """A hook that gets gradients as large as in one process with all rows."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> Any:
        """Returns the hook's result as large as the gradients of this process."""
        factor = Enlargement.factor
        if factor == 1:
            return self._hook(*args)
        smaller = _scaled(args, 1 / factor)
        written = _versions(smaller)
        result = self._hook(*smaller)
        if result is None and _versions(smaller) != written:
            # Gradients follow the module in the arguments of a module's hook.
            result = smaller[1] if isinstance(smaller[0], nn.Module) else smaller[0]
        return None if result is None else _scaled(result, factor)


def global_batch_hook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a hook of activations get the gradients that one process with all rows would have.

    The gradient of an activation is that of its replica's own mean loss. In one process with the
    rows of all replicas it is smaller, so a bound or a threshold would be met at another size. The
    hook is given the gradient divided by the number of replicas (and by that of the micro-batches
    which `trainingModel` averages), and its result is multiplied again.

    Args:
        hook: For ``Tensor.register_hook``, ``Module.register_full_backward_hook`` or
            ``Module.register_full_backward_pre_hook``, or for a graph node; it returns its result.
            Or the ``backward`` of a ``torch.autograd.Function``, below ``@staticmethod``.

    Returns:
        The hook to register. In a job of one replica it does the same as the given one.
    """
    return OfGlobalBatch(hook)


def _versions(values: Any) -> list[int]:
    leaves: list[Any] = pytree.tree_leaves(values)
    return [leaf._version for leaf in leaves if isinstance(leaf, torch.Tensor)]  # noqa: SLF001 - no public name


def _scaled(values: Any, factor: float) -> Any:
    """Copies of all tensors of some values, times a factor."""
    return pytree.tree_map_only(torch.Tensor, functools.partial(operator.mul, factor), values)
