"""Tensors of a wrapped model by name: weights, buffers, and gradients of the last update.

PopART has names for activations too; here these exist only while the model runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist.nearest import did_you_mean
from popdist_torch.errors import Error
from popdist_torch.executor.state import Stateful

if TYPE_CHECKING:
    import torch

_GRADIENT = "Gradient___"
"""PopART's prefix for the gradient of a tensor."""


class Anchored(Stateful):
    """A wrapped model whose tensors can be read."""

    def getTensorNames(self) -> list[str]:
        """Names of tensors that ``options.anchorTensor`` can refer to.

        Returns:
            Parameters and buffers by the module's names; ``Gradient___<parameter>`` for those that
            the last update had a gradient for.

        Raises:
            Error: The model is not compiled.
        """
        return list(self._tensors())

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Reads a tensor that ``options.anchorTensor`` named.

        Args:
            short_name: The name that the program gave it.

        Returns:
            A copy. A gradient is the one that the last update used: summed over all replicas of the
            job, and divided as the options say.

        Raises:
            Error: It was not named, or there is no such tensor.
        """
        named = self._options.anchored_tensors
        if short_name not in named:
            raise Error(
                "PD305",
                "no tensor was anchored under this name",
                value=short_name,
                accepted=", ".join(sorted(named)) or None,
                hint="call options.anchorTensor(short_name, long_name) before the model is wrapped",
            )
        tensors = self._tensors()
        long_name = named[short_name]
        if long_name not in tensors:
            raise Error(
                "PD305",
                "the model has no such tensor",
                value=long_name,
                accepted="the names of getTensorNames()",
                hint=did_you_mean(long_name, tensors, shown="{!r}"),
            )
        return tensors[long_name].detach().clone()

    def _tensors(self) -> dict[str, torch.Tensor]:
        model = self._require_compiled().model
        model.buffers.use(0)
        found = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
        for name, parameter in model.module.named_parameters():
            if parameter.grad is not None:
                found[_GRADIENT + name] = parameter.grad
        return found
