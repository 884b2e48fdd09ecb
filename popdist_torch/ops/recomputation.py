"""Trades activations for a second forward pass, where a model marks it.

On an IPU, ``recomputationCheckpoint`` marks tensors that are kept; what lies between is computed
again in the backward pass. Called eagerly, it cannot know what lies between. But programs mark the
results of layers: ``x = recomputationCheckpoint(layer(x))``, or a forward hook that does so. So the
first micro-batch of a training executor finds out which layers' results are marked, and from then
on these layers keep their inputs only and run once more in the backward pass
(``torch.utils.checkpoint``). Results are bit-identical: random numbers are drawn again as
they were.

Layers that change buffers as they run, such as BatchNorm in training, would change them twice and
are not recomputed, with a line at info level.
"""

from __future__ import annotations

import functools
import logging
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from popdist_torch.options.option_methods import stored_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Context = AbstractContextManager[Any]

logger = logging.getLogger("popdist.torch")


class MarkedLayers:
    """Finds the layers of a module whose results are marked, and makes them recompute.

    Args:
        module: The module.
        mode: Makes the context that layers need as they run again.

    Attributes:
        are_needed: Whether `forward_pass` has anything to do.
    """

    def __init__(self, module: nn.Module, mode: Callable[[], Context] = nullcontext) -> None:
        self._module = module
        self._mode = mode
        self._layers: list[nn.Module] = []
        self._results: dict[int, tuple[torch.Tensor, nn.Module]] = {}
        self._versions: dict[nn.Module, list[int]] = {}
        self._found = False
        self.are_needed = True

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """Wraps a micro-batch; the first one finds the layers."""
        if self._found:
            with self._recomputing():
                yield
            return
        with self._finding():
            yield
        self._found = True
        inner = {part for layer in self._layers for part in layer.modules() if part is not layer}
        self._layers = [layer for layer in self._layers if layer not in inner]
        self.are_needed = bool(self._layers)

    def note(self, tensor: torch.Tensor) -> None:
        """Records that a tensor is marked."""
        known = self._results.get(id(tensor))
        if known is None:
            stored_only("recomputationCheckpoint of what is no layer's result")
        elif known[1] not in self._layers:
            self._layers.append(known[1])

    @contextmanager
    def _finding(self) -> Iterator[None]:
        """Watches one forward pass."""
        hooks = [part.register_forward_pre_hook(self._begins) for part in self._parts()]
        # First of all, so that a program's own hook marks a result that is known already.
        hooks += [part.register_forward_hook(self._ends, prepend=True) for part in self._parts()]
        token = _watching.set(self)
        try:
            yield
        finally:
            _watching.reset(token)
            self._results.clear()
            for hook in hooks:
                hook.remove()

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Makes the found layers run again in the backward pass of the code inside."""
        # The module is the program's: outside, and in its copies, layers are as they were.
        own = [layer.__dict__.get("forward") for layer in self._layers]
        for layer in self._layers:
            layer.forward = _recomputed(layer.forward, self._mode)
        try:
            yield
        finally:
            for layer, forward in zip(self._layers, own, strict=True):
                if forward is None:
                    del layer.forward
                else:
                    layer.forward = forward

    def _parts(self) -> list[nn.Module]:
        # The whole model's result needs no activations but all of them.
        return [part for part in self._module.modules() if part is not self._module]

    def _begins(self, layer: nn.Module, _args: Any) -> None:
        self._versions[layer] = _versions(layer)

    def _ends(self, layer: nn.Module, _args: Any, result: Any) -> None:
        if _versions(layer) != self._versions.pop(layer, None):
            logger.info(
                "a %s changes buffers as it runs, so it is not recomputed", type(layer).__name__
            )
            return
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                # The innermost layer comes first; an outer one that returns its result is the
                # larger part to recompute. The tensor is kept so that its id stays its own.
                self._results[id(leaf)] = (leaf, layer)


_watching: ContextVar[MarkedLayers | None] = ContextVar("watching for marks", default=None)


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Marks tensors that are kept for the backward pass; see the module for what that saves.

    Args:
        *tensors: The tensors, or nestings of them.

    Returns:
        The one argument, or a tuple of all.
    """
    # Compiled code chooses what it recomputes, and Dynamo cannot trace a context variable.
    watch = None if torch.compiler.is_compiling() else _watching.get()
    if watch is not None:
        for leaf in pytree.tree_leaves(tensors):
            if isinstance(leaf, torch.Tensor):
                watch.note(leaf)
    return tensors[0] if len(tensors) == 1 else tensors


def _recomputed(forward: Any, mode: Callable[[], Context]) -> Any:
    def contexts() -> tuple[Context, Context]:
        return nullcontext(), mode()

    @functools.wraps(forward)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return recomputed


def _versions(layer: nn.Module) -> list[int]:
    return [buffer._version for buffer in layer.buffers()]  # noqa: SLF001 - counts changes in place
