"""Reads tensors of a wrapped model by name: weights, buffers, and gradients of backward passes.

As in PopTorch, each local replica has a tensor of its own, before gradients are accumulated, summed
over replicas or divided. Replicas follow one another along the first dimension, micro-batches too.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from popdist.nearest import did_you_mean
from popdist_torch.errors import Error
from popdist_torch.options import Options, OutputMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    TensorsOf = Callable[[int], Mapping[str, torch.Tensor]]
    """The tensors of a local replica by name."""

UPDATED = "UpdatedVar___"
"""PopART's prefix for a weight after its update."""

GRADIENT = "Gradient___"
"""PopART's prefix for the gradient of a tensor."""


class Anchors:
    """The tensors that ``options.anchorTensor`` names.

    Args:
        options: The options, with their output mode settled.
        replicas: The number of local replicas.

    Attributes:
        names: The tensors, by the program's names for them.
        replica: The local replica whose backward pass runs.
    """

    def __init__(self, options: Options, replicas: int) -> None:
        self.replica = 0
        self._replicas = range(replicas)
        self.names: dict[str, str] = dict(options.anchored_tensors)
        given = options.values().get("anchor_modes", {})
        default = (options.output_mode, options.output_return_period)
        modes = {short: given.get(short, default) for short in self.names}
        self._modes: dict[str, tuple[OutputMode, int]] = {
            short: default if mode[0] == OutputMode.Default else mode
            for short, mode in modes.items()
        }
        self._kept: dict[str, list[torch.Tensor]] = {}
        self._gradients: dict[str, dict[int, torch.Tensor]] = {}

    def begin(self) -> None:
        """Starts a call."""
        self._kept = {short: [] for short in self.names}

    @contextmanager
    def watching(self, named: Iterable[tuple[str, torch.Tensor]], factor: float) -> Iterator[None]:
        """Keeps the gradients of each backward pass inside, times a factor, where they are named.

        Args:
            named: The trained parameters by name.
            factor: Undoes a division of the losses.
        """
        self._gradients = {name: {} for name in self.names.values() if name.startswith(GRADIENT)}
        hooks: list[Any] = []
        for name, parameter in named if self._gradients else ():
            if (kept := self._gradients.get(GRADIENT + name)) is not None:
                hooks.append(parameter.register_hook(self._keeper(kept, factor)))  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _keeper(
        self, kept: dict[int, torch.Tensor], factor: float
    ) -> Callable[[torch.Tensor], None]:
        def keep(gradient: torch.Tensor) -> None:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            kept[self.replica] = dense.detach() * factor

        return keep

    def take(self, index: int, tensors: TensorsOf, *, updated: bool = False) -> None:
        """Keeps what was named, after a micro-batch of all local replicas or after an update.

        Args:
            index: The number of micro-batches, or of updates, before this one in the call.
            tensors: The tensors.
            updated: Whether it is an update.
        """
        tensors = cache(tensors)
        for short, long in self.names.items():
            mode, period = self._modes[short]
            if long.startswith(UPDATED) != updated or (
                mode == OutputMode.EveryN and (index + 1) % period
            ):
                continue
            final = mode == OutputMode.Final
            if long.startswith(GRADIENT):
                of_each = self._gradients[long]
                if not of_each:
                    continue
                zero = torch.zeros_like(next(iter(of_each.values())))
                value = _joined([of_each.get(replica, zero) for replica in self._replicas])
            elif final or long not in tensors(0):
                continue  # the last value is read from the model
            else:
                value = self._of_replicas(long, tensors)
            kept = self._kept[short]
            if mode == OutputMode.Sum and kept:
                kept[0] += value
            elif final:
                kept[:] = [value]
            else:
                kept.append(value)
        for of_each in self._gradients.values():
            of_each.clear()

    def read(self, short: str, tensors: TensorsOf) -> torch.Tensor:
        """A copy of one tensor, by the program's name for it.

        Raises:
            Error: It was not named, or there is no such tensor.
        """
        if short not in self.names:
            raise Error(
                "PD392",
                "no tensor was anchored under this name",
                value=short,
                accepted=", ".join(sorted(self.names)) or None,
                hint="call options.anchorTensor(short_name, long_name) before the model is wrapped",
            )
        long = self.names[short]
        if kept := self._kept.get(short):
            return _joined(kept).cpu()
        tensors = cache(tensors)
        present = tensors(0)
        if long not in present or long.startswith(GRADIENT):
            raise Error(
                "PD392",
                "the model has no such tensor",
                value=long,
                accepted="the names of getTensorNames()",
                hint=did_you_mean(long, present, shown="{!r}"),
            )
        return self._of_replicas(long, tensors).cpu()

    def _of_replicas(self, name: str, tensors: TensorsOf) -> torch.Tensor:
        return _joined([tensors(replica)[name] for replica in self._replicas])


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """A copy of tensors along their first dimension; several scalars become a vector."""
    if len(parts) == 1:
        return parts[0].detach().clone()
    return torch.cat([part.detach().reshape(part.shape or (1,)) for part in parts])
