"""Values that a backward pass needs, in models with modules that work in place.

A graph of PopTorch has no in-place operations. So its models may change a value that their
gradients need, for example by ``Dropout(inplace=True)`` after a ReLU, which torch refuses. Here
torch copies such values before they are changed. That takes time for each operation, so the first
micro-batch finds out whether the model needs it, and only models with modules that work in place
are tried.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd import graph

from popdist_torch.errors import CustomOperatorError

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
        with graph.allow_mutation_on_saved_tensors() as context, _of_any_layout(context):
            self._context = context
            try:
                yield
            finally:
                self._context = None

    def require_free(self) -> None:
        """Checks that a micro-batch may stop in the middle, so that another one runs.

        Raises:
            CustomOperatorError: Values are copied, which torch does for one forward at a time.
        """
        if self._context is not None:
            raise CustomOperatorError(
                "PD364",
                "local replicas cannot exchange values in a model with modules that work in place",
                value="a module with inplace=True",
                hint="inplace=False; or start as many instances as replicas (poprun "
                "--num-instances=N --num-replicas=N)",
            )

    def after_forward(self) -> None:
        """Notes whether the first forward pass changed a value that its gradients need."""
        if self._context is not None and not self._is_known:
            self.keeps = bool(self._context.cloned)
            self._is_known = True


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
