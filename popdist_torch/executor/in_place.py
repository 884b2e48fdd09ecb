"""Values that a backward pass needs, in models with modules that work in place.

A graph of PopTorch has no in-place operations. So its models may change a value that their
gradients need, for example by ``Dropout(inplace=True)`` after a ReLU, which torch refuses. Here
torch copies such values before they are changed. That takes time for each operation, so the first
micro-batch finds out whether the model needs it, and only models with modules that work in place
are tried.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.autograd.graph import allow_mutation_on_saved_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


class SavedValues:
    """Whether the values that backward passes of a model need are copied before they are changed.

    Args:
        module: The model.
        compiled: Whether it is compiled, which removes in-place operations.

    Attributes:
        keeps: Whether they are copied, or tried to be.
    """

    def __init__(self, module: nn.Module, *, compiled: bool = False) -> None:
        parts = () if compiled else module.modules()
        self.keeps = any(getattr(part, "inplace", False) is True for part in parts)
        self._context: Any = None
        self._is_known = False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Wraps the forward and the backward pass of a micro-batch."""
        if not self.keeps:
            yield
            return
        with allow_mutation_on_saved_tensors() as context:
            self._context = context
            try:
                yield
            finally:
                self._context = None

    def after_forward(self) -> None:
        """Notes whether the first forward pass changed a value that its gradients need."""
        if self._context is not None and not self._is_known:
            self.keeps = bool(self._context.cloned)
            self._is_known = True
