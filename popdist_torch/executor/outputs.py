"""Selection of the outputs that a call returns, and their concatenation or sum."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.executor.structure import Structure, flatten
from popdist_torch.memory import addresses
from popdist_torch.options import OutputMode

if TYPE_CHECKING:
    from popdist_torch.executor.batching import Batching


def returned(mode: OutputMode, period: int, batching: Batching, iteration: int, step: int) -> bool:
    """Whether the outputs of one micro-batch contribute to what a call returns.

    With ``Final`` the last micro-batch contributes; with ``All`` and ``Sum`` all of them; with
    ``EveryN`` those of iterations N - 1, 2N - 1, ...
    """
    if mode == OutputMode.Final:
        return iteration == batching.iterations - 1 and step == batching.accumulation - 1
    if mode == OutputMode.EveryN:
        return (iteration + 1) % period == 0
    return True


class Outputs:
    """Collects the outputs of a call.

    Args:
        mode: The output mode, resolved.
        period: N of ``EveryN``.
        batching: The batch algebra.
        shared: Storages (by address) of tensors that later steps change in place, and that outputs
            must therefore not refer to.

    Attributes:
        given: For each returned micro-batch, the start and end of collecting it, in seconds.
        summed: Whether the outputs are summed.
        tensors: Number of tensors of a micro-batch.
    """

    def __init__(
        self, mode: OutputMode, period: int, batching: Batching, shared: frozenset[int]
    ) -> None:
        self._mode = mode
        self._period = period
        self._batching = batching
        self._shared = shared
        self._kept: list[list[Any]] = []
        self._sums: dict[int, list[Any]] = {}
        self._structure: Structure | None = None
        self.given: list[tuple[float, float]] = []
        self.summed = mode == OutputMode.Sum
        self.tensors = 0

    def add(self, output: Any, iteration: int, step: int, replica: int) -> None:
        """Adds what the model returned for one micro-batch, in any nesting; indices from 0."""
        if not returned(self._mode, self._period, self._batching, iteration, step):
            return
        started = time.perf_counter()
        leaves, self._structure = flatten(output)
        leaves = [self._own(leaf) for leaf in leaves]
        self.tensors = sum(isinstance(leaf, torch.Tensor) for leaf in leaves)
        if self._mode != OutputMode.Sum:
            self._kept.append(leaves)
        elif replica in self._sums:
            earlier = self._sums[replica]
            self._sums[replica] = [
                e + leaf if isinstance(leaf, torch.Tensor) else leaf
                for e, leaf in zip(earlier, leaves, strict=True)
            ]
        else:
            self._sums[replica] = leaves
        self.given.append((started, time.perf_counter()))

    def joined(self) -> Any:
        """The call's outputs, in the model's nesting.

        A tensor has ``count x`` its first dimension, where count is the number of micro-batches
        (or, for ``Sum``, of replicas) that contribute. Count 1 keeps its shape; a higher one makes
        a scalar a vector. Tensors are on the host, as PopTorch returns them.
        """
        if self._structure is None:
            return None
        rows = self._kept or [self._sums[replica] for replica in sorted(self._sums)]
        leaves = [_join(list(column)) for column in zip(*rows, strict=True)]
        return self._structure.build(iter(leaves))

    def _own(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.detach()
        # Plain tensors have other memory on a GPU in each call, so all of its tensors are copied.
        shared = leaf.device.type != "cpu" or not self._shared.isdisjoint(addresses(leaf))
        return leaf.clone() if shared else leaf


def _join(parts: list[Any]) -> Any:
    first = parts[0]
    if not isinstance(first, torch.Tensor):
        return first
    if len(parts) > 1:
        first = torch.cat([part.reshape(1) if part.dim() == 0 else part for part in parts])
    # Without attributes: programs save losses in checkpoints, which load plain tensors only.
    return first.cpu()
