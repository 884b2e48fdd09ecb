"""Records what torch trains, where ``poprun --compare-alone`` compares a job with its program.

Nothing of this module runs in a training that is not compared. Every optimizer of torch is
recorded, also one that Horovod distributes, and what enters the outermost modules. Random numbers
and statistics of a batch cannot be the same in a job and alone, so batch normalization works as in
evaluation, and nothing random is drawn in modules.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler

from popdist.recording import Recording, recording
from popdist_torch.constant_draws import ConstantDraws
from popdist_torch.unexchanged import has_zero_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The last two draw where no function of torch is seen.
_RANDOM = (_NormBase, nn.MultiheadAttention, nn.RNNBase)


class Recorder:
    """Records the optimizers and modules of this process.

    Args:
        recording: Where to.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._depth = 0  # of the module that runs
        self._steps: dict[int, int] = {}  # how deep each optimizer is inside of its own steps
        self._begun: set[int] = set()  # optimizers that have made a step
        self._names: dict[int, str] = {}
        self._known: list[Any] = []  # what has a name here, so that no other gets its identity

    def start(self) -> None:
        """Wraps modules, and adds hooks to all optimizers."""
        call: Callable[..., Any] = nn.Module.__call__
        recorder = self

        def recorded(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return recorder._called(call, module, args, kwargs)

        nn.Module.__call__ = recorded  # type: ignore[method-assign]
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._before(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._after(optimizer))
        if self._recording.scale > 1:
            _multiply_batches(self._recording.scale)

    def _called(self, call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if isinstance(module, _RANDOM):
            module.training = False
        if not self._depth and torch.is_grad_enabled():
            self._note(module, args, kwargs)
        self._depth += 1
        try:
            with nullcontext() if self._depth > 1 else ConstantDraws():
                outputs = call(module, *args, **kwargs)
        finally:
            self._depth -= 1
        if isinstance(outputs, torch.Tensor) and outputs.is_floating_point():
            self._recording.note_type(str(outputs.dtype).removeprefix("torch."))
        return outputs

    def _note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for name, parameter in module.named_parameters():
            if id(parameter) not in self._names:
                self._names[id(parameter)] = name
                self._known.append(parameter)
        leaves = [
            (path, leaf)
            for path, leaf in pytree.tree_flatten_with_path((args, kwargs))[0]
            if isinstance(leaf, torch.Tensor)
        ]
        # Modules that transform samples have no weights, and receive nothing that is computed.
        if not any(leaf.requires_grad for _, leaf in leaves) and not any(
            True for _ in module.parameters()
        ):
            return
        for path, leaf in leaves:
            # What carries a gradient is computed by the program, and no sample.
            if not leaf.requires_grad:
                self._recording.note_input(pytree.keystr(path), _array(leaf))

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        # Optimizers of Horovod call the step of their base class, with its hooks.
        depth = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if depth == 1:
            self._recording.before_update(self._model(optimizer), self._weights(optimizer))

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        self._steps[id(optimizer)] -= 1
        if self._steps[id(optimizer)]:
            return
        if self._makes_state(optimizer):
            self._recording.begin_again(self._model(optimizer))
            return
        self._recording.after_update(
            self._model(optimizer), self._weights(optimizer), self._gradients(optimizer)
        )

    def _makes_state(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step was no update of a training, but the optimizer's first, to make state."""
        is_first = id(optimizer) not in self._begun
        self._begun.add(id(optimizer))
        return is_first and has_zero_gradients(p for _, p in self._named(optimizer))

    def _model(self, optimizer: torch.optim.Optimizer) -> str:
        return self._recording.model(optimizer, type(optimizer).__name__)

    def _weights(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
        return ((name, _array(one)) for name, one in self._named(optimizer))

    def _gradients(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
        named = self._named(optimizer)
        return ((name, _array(one.grad)) for name, one in named if one.grad is not None)

    def _named(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                name = self._names.get(id(parameter), f"parameter {index} of group {number}")
                yield name, parameter


def start() -> None:
    """Records this process, if it is one of a comparison; safe to call again."""
    found = recording()
    if found is not None and nn.Module.__call__.__module__ != __name__:
        Recorder(found).start()


def _array(tensor: torch.Tensor) -> Any:
    """A tensor as a numpy array, which has no bfloat16."""
    plain = tensor.detach().cpu().to_dense() if tensor.is_sparse else tensor.detach().cpu()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).contiguous().numpy()


def _multiply_batches(scale: int) -> None:
    """Multiplies the batches of torch's loaders."""
    made = BatchSampler.__init__

    def scaled(self: Any, sampler: Any, batch_size: int, drop_last: bool) -> None:
        made(self, sampler, batch_size * scale, drop_last)

    BatchSampler.__init__ = scaled  # type: ignore[method-assign]
