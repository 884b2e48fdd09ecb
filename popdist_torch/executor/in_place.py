"""Values that a backward pass needs, in models that change them.

A graph of PopTorch has no in-place operations. So its models may change a value that their
gradients need, for example by ``Dropout(inplace=True)`` after a ReLU, or by ``x *= mask``, which
torch refuses. Here torch copies such values before they are changed. That takes time for each
operation, so the first micro-batch finds out whether the model needs it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd import graph

if TYPE_CHECKING:
    from collections.abc import Iterator

_REFUSED = "support saved tensor hooks"
"""In the error of what cannot run where values are copied: transforms of ``torch.func``."""


class SavedValues:
    """Whether the values that backward passes of a model need are copied before they are changed.

    Args:
        compiled: Whether the model is compiled, which removes in-place operations.

    Attributes:
        keeps: Whether they are copied, or tried to be.
        is_known: Whether it is known that the model needs it, or that it does not.
    """

    def __init__(self, *, compiled: bool = False) -> None:
        self.keeps = not compiled
        self.is_known = compiled
        self._context: Any = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Wraps the forward and the backward pass of a micro-batch where values are copied."""
        with graph.allow_mutation_on_saved_tensors() as context, _of_any_layout(context):
            self._context = context
            try:
                yield
            finally:
                self._context = None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Wraps the time in which a micro-batch waits in the middle, and another one runs.

        Each runs in a thread of its own, as torch's contexts are; only their switch is one for all.
        """
        context, self._context = self._context, None
        if context is not None:
            graph._allow_mutation_on_saved_tensors_enabled = False  # noqa: SLF001 - no public name
        yield
        self._context = context
        if context is not None:
            graph._allow_mutation_on_saved_tensors_enabled = True  # noqa: SLF001 - as above

    def after_forward(self) -> None:
        """Notes whether the first forward pass changed a value that its gradients need."""
        if self._context is not None:
            self.keeps = bool(self._context.cloned)
            self.is_known = True

    def is_refused(self, error: RuntimeError) -> bool:
        """Whether a first forward pass failed because values are copied; they are not from now."""
        if self.is_known or _REFUSED not in str(error):
            return False
        self.keeps, self.is_known = False, True
        return True


class _Sparse(NamedTuple):
    """A saved tensor that has no memory of its own, and how often it had been changed."""

    tensor: torch.Tensor
    version: int


def _of_any_layout(context: Any) -> graph.saved_tensors_hooks:
    """Saves sparse tensors too, which torch's context, which asks for their memory, cannot."""
    dense = graph._swap_with_cloned(context)  # noqa: SLF001 - its hooks have no public name

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.layout is torch.strided:
            return dense.pack_hook(tensor)
        return _Sparse(tensor, tensor._version)  # noqa: SLF001 - torch's count of changes

    def unpack(saved: Any) -> torch.Tensor:
        if not isinstance(saved, _Sparse):
            return dense.unpack_hook(saved)
        if saved.tensor._version != saved.version:  # noqa: SLF001 - as above
            message = (
                "a sparse tensor that a gradient needs has been modified by an inplace operation"
            )
            raise RuntimeError(message)
        return saved.tensor

    return graph.saved_tensors_hooks(pack, unpack)
