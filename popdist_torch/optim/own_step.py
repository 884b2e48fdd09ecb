"""Optimizers whose update is written here, and not torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.optim.scaled import Scaled

if TYPE_CHECKING:
    from collections.abc import Callable


class OwnStep(Scaled):
    """A step that updates each weight by `_update`."""

    # Complete on its own: torch runs step hooks once more in a step that calls its parent's.
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates the parameters from their gradients.

        Args:
            closure: Evaluates the model first.

        Returns:
            What ``closure`` returned.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self._update_all()
        return loss

    def _update_all(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError
