"""Runs of a torch module, as it trains but without dropout: outputs, gradients and buffers."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from popdist.checks.passes import local

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import torch

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

Gradients: TypeAlias = "dict[str, Array]"

_WITHOUT_DROPOUT = {
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_alpha_dropout", "feature_dropout"),
}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
# Places of the ratio among the arguments.
_RECURRENT_DROPOUT, _PACKED_DROPOUT, _ATTENTION_DROPOUT = 5, 6, 4
_PACKED_WEIGHTS = 3


def wide(one: Any) -> Any:
    """An input in double precision, where it is floating-point."""
    return one.double() if one.is_floating_point() else one


def doubled(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module in double precision."""
    return copy.deepcopy(module).double()


def outputs_of(
    module: torch.nn.Module, arguments: Sequence[Any]
) -> tuple[list[Array], dict[str, Array]]:
    """Outputs of a module in training mode without dropout, and those of its submodules.

    The module, its running statistics and torch's random numbers stay as they are.
    """
    import torch

    inside: dict[str, Array] = {}

    def keep(name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                inside.setdefault(name, to_array(output))

        return hook

    hooks = [one.register_forward_hook(keep(name)) for name, one in module.named_modules() if name]
    try:
        with as_trained(module):
            made = module(*[one.clone() for one in arguments])
    finally:
        for hook in hooks:
            hook.remove()
    return [to_array(one) for one in flat(made)], inside


@contextmanager
def as_trained(module: torch.nn.Module) -> Iterator[None]:
    """A context in which a module is in training mode without dropout; then it is as before."""
    import torch

    mode = {one: one.training for one in module.modules()}
    buffers = {name: one.detach().clone() for name, one in module.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _no_dropout():
            module.train()
            yield
    finally:
        for one, training in mode.items():
            one.training = training
        for name, buffer in module.named_buffers():
            if name in buffers:
                buffer.data.copy_(buffers[name])


def _no_dropout() -> Any:
    """A context in which no function of torch drops anything."""
    from torch.overrides import TorchFunctionMode

    class WithoutDropout(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            kwargs = dict(kwargs or {})
            name = getattr(func, "__name__", "").rstrip("_")
            if name in _WITHOUT_DROPOUT:
                return args[0] if args else kwargs["input"]
            if name == "scaled_dot_product_attention":
                args = (*args[:4], 0.0, *args[5:]) if len(args) > _ATTENTION_DROPOUT else args
                kwargs |= {"dropout_p": 0.0} if len(args) <= _ATTENTION_DROPOUT else {}
            if name in _RECURRENT and len(args) > _PACKED_DROPOUT:
                # Packed sequences have their lengths as a further argument before the weights.
                packed = isinstance(args[_PACKED_WEIGHTS], list | tuple)
                place = _PACKED_DROPOUT if packed else _RECURRENT_DROPOUT
                args = tuple(0.0 if n == place else a for n, a in enumerate(args))
            if name == "multi_head_attention_forward":
                kwargs["training"] = False
            return func(*args, **kwargs)

    return WithoutDropout()


def flat(made: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output, in the order in which exporters write them."""
    import torch

    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, dict):
        for one in made.values():
            yield from flat(one)
    elif isinstance(made, (list, tuple)):
        for one in made:
            yield from flat(one)


def to_array(tensor: torch.Tensor) -> Array:
    """A copy of a tensor; of bfloat16, which numpy lacks, in single precision."""
    import torch

    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()


def factors_of(
    module: torch.nn.Module, arguments: Sequence[torch.Tensor]
) -> list[np.ndarray[Any, Any]]:
    """Random factors for the elements of all outputs."""
    rng = np.random.default_rng(0)
    with as_trained(module):
        outputs = flat(module(*[one.clone() for one in arguments]))
        return [rng.normal(size=tuple(one.shape)).astype(np.float32) for one in outputs]


def gradients_of(
    module: torch.nn.Module,
    given: Sequence[torch.Tensor],
    factors: Sequence[np.ndarray[Any, Any]],
) -> Gradients:
    """The gradients of the outputs' sum with factors."""
    import torch

    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    with local(), as_trained(module), torch.enable_grad():
        outputs = flat(module(*[one.clone() for one in given]))
        parts = [
            (one * torch.from_numpy(factor).to(one.dtype)).sum()
            for one, factor in zip(outputs, factors, strict=True)
            if one.requires_grad
        ]
        found: Sequence[torch.Tensor | None] = [None] * len(trained)
        if parts:
            total = torch.stack(parts).sum()
            found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    return {
        name: np.zeros(tuple(one.shape)) if grad is None else grad.detach().double().numpy()
        for (name, one), grad in zip(trained.items(), found, strict=True)
    }


@contextmanager
def scaled_weights(
    module: torch.nn.Module, names: Collection[str], factor: float
) -> Iterator[None]:
    """A context in which some parameters of a module are multiples of what they were."""
    import torch

    chosen = [one for name, one in module.named_parameters() if name in names]
    kept = [one.detach().clone() for one in chosen] if factor != 1 else []
    with torch.no_grad():
        for one, _ in zip(chosen, kept, strict=False):
            one.mul_(factor)
    try:
        yield
    finally:
        with torch.no_grad():
            for one, content in zip(chosen, kept, strict=False):
                one.copy_(content)
