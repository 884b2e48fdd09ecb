"""Reads tensors of a wrapped model by name: weights, buffers, and gradients of updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from popdist.nearest import did_you_mean
from popdist_torch.errors import Error
from popdist_torch.options import Options, OutputMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


UPDATED = "UpdatedVar___"
"""PopART's prefix for a weight after its update."""


class Anchors:
    """The tensors that ``options.anchorTensor`` names."""

    def __init__(self, options: Options) -> None:
        self._named: dict[str, str] = dict(options.anchored_tensors)
        modes = options.values().get("anchor_modes", {})
        # The last value is read from the model; others have to be kept while the call runs.
        self._modes: dict[str, tuple[OutputMode, int]] = {
            short: mode
            for short, mode in modes.items()
            if mode[0] not in (OutputMode.Final, OutputMode.Default)
        }
        self._kept: dict[str, list[torch.Tensor]] = {}

    def begin(self) -> None:
        """Starts a call."""
        self._kept = {short: [] for short in self._modes}

    def take(
        self,
        iteration: int,
        tensors: Callable[[], Mapping[str, torch.Tensor]],
        *,
        updated: bool = False,
    ) -> None:
        """Keeps the tensors of a device iteration (from 0), before or after its update."""
        chosen = {
            short: mode
            for short, mode in self._modes.items()
            if self._named[short].startswith(UPDATED) == updated
        }
        if not chosen:
            return
        present = tensors()
        for short, (mode, period) in chosen.items():
            if self._named[short] in present and (
                mode != OutputMode.EveryN or (iteration + 1) % period == 0
            ):
                self._kept[short].append(present[self._named[short]].detach().clone())

    def read(self, short: str, present: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A copy of one tensor, by the program's name for it.

        Raises:
            Error: It was not named, or there is no such tensor.
        """
        if short not in self._named:
            raise Error(
                "PD392",
                "no tensor was anchored under this name",
                value=short,
                accepted=", ".join(sorted(self._named)) or None,
                hint="call options.anchorTensor(short_name, long_name) before the model is wrapped",
            )
        long = self._named[short]
        kept = self._kept.get(short)
        if kept:
            if self._modes[short][0] == OutputMode.Sum:
                return torch.stack(kept).sum(0).cpu()
            rows = [tensor if tensor.dim() else tensor.reshape(1) for tensor in kept]
            return (torch.cat(rows) if len(rows) > 1 else kept[0]).cpu()
        if long not in present:
            raise Error(
                "PD392",
                "the model has no such tensor",
                value=long,
                accepted="the names of getTensorNames()",
                hint=did_you_mean(long, present, shown="{!r}"),
            )
        return present[long].detach().clone().cpu()
