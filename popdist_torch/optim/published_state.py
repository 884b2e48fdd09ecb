"""An optimizer's state under PopART's names, as PopTorch's ``state_dict()`` and its files have it.

A file that was saved on an IPU has the moments there alone: torch's own state is empty in it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from popdist_torch.errors import OptimizerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

logger = logging.getLogger("popdist.torch")

HALF = (torch.float16, torch.bfloat16)
"""Types of weights that executors update in single precision."""

FACTOR = "lossScaleUpdateFactor"
"""The name of what automatic loss scaling multiplies the loss scaling with."""

_UNUSED = ("Accum___", FACTOR)
"""What is no state of a weight between updates."""

_names: Any = WeakTensorKeyDictionary()
"""The name of each weight of a wrapped model. Parameters hold nothing of it: files are plain."""


class Stated(Protocol):
    """An optimizer that knows PopART's names; see `popdist_torch.optim.Optimizer`."""

    state: Any
    param_groups: list[dict[str, Any]]
    loss_scaling: float
    loss_scale_update_factor: float

    def accumulators(self, group: dict[str, Any], /) -> dict[str, tuple[str, float]]:
        """PopART's prefix of each tensor that torch keeps for a weight of a group."""

    def first_value(self, key: str, shape: torch.Size, /) -> torch.Tensor:
        """What a tensor of the state is before the first update."""


def name_weights(named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
    """Notes the names that a model gives to its weights."""
    for name, parameter in named:
        _names[parameter] = name


def states(optimizer: Stated, of_torch: Mapping[int, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of the state; that of a weight before its first update has its first values.

    Tensors are torch's own where the values are equal, so that a file has them once.

    Args:
        optimizer: The optimizer.
        of_torch: The state of each weight in torch's ``state_dict``, by index.
    """
    found = {}
    for index, (name, weight, group) in enumerate(_weights(optimizer)):
        state = of_torch.get(index, {})
        if not state and weight not in _names:
            continue
        for key, (prefix, factor) in optimizer.accumulators(group).items():
            value = state.get(key)
            if value is None:
                value = optimizer.first_value(key, weight.shape)
            value = torch.as_tensor(value).detach()
            found[f"{prefix}___{name}"] = value if factor == 1 else value * factor
    if "loss_scale_update_factor" in vars(optimizer):
        found[FACTOR] = torch.tensor(optimizer.loss_scale_update_factor)
    return found


def settings(optimizer: Stated) -> dict[str, torch.Tensor]:
    """The loss scaling, and the learning rate and weight decay of each weight."""
    found = {"lossScaling_FLOAT": torch.tensor(optimizer.loss_scaling)}
    for name, _, group in _weights(optimizer):
        for key, published in (("lr", "learningRate"), ("weight_decay", "weightDecay")):
            found[f"{published}___specific___{name}"] = torch.as_tensor(group[key])
    return found


def is_named(optimizer: Stated) -> bool:
    """Whether a wrapped model has given the optimizer's weights their names."""
    return any(weight in _names for _, weight, _ in _weights(optimizer))


def adopt(optimizer: Stated, given: Mapping[str, torch.Tensor]) -> None:
    """Makes tensors of PopART's names the optimizer's state.

    Raises:
        OptimizerError: A tensor has another shape than its weight.
    """
    left = {name for name in given if not name.startswith(_UNUSED)}
    for name, weight, group in _weights(optimizer):
        accumulators = optimizer.accumulators(group)
        if f"{next(iter(accumulators.values()), ('',))[0]}___{name}" not in left:
            continue
        for key, (prefix, factor) in accumulators.items():
            first = optimizer.first_value(key, weight.shape)
            value = given.get(f"{prefix}___{name}", first)
            if value.numel() != first.numel():
                raise OptimizerError(
                    "PD306",
                    f"{prefix}___{name} of the loaded state does not fit its weight",
                    value=list(value.shape),
                    accepted=str(list(first.shape)),
                )
            kind = weight.dtype if first.dim() and weight.dtype not in HALF else torch.float32
            value = value.detach().to(kind).reshape(first.shape) / factor
            optimizer.state[weight][key] = value.to(weight.device) if first.dim() else value
            left.discard(f"{prefix}___{name}")
    if left:
        logger.warning(
            "%s tensors of the loaded optimizer state belong to no weight, and are not used: %s",
            len(left),
            ", ".join(sorted(left)[:3]),
        )


def _weights(optimizer: Stated) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
    """Name (or index), weight and group of all weights."""
    weights = ((weight, group) for group in optimizer.param_groups for weight in group["params"])
    for index, (weight, group) in enumerate(weights):
        yield _names.get(weight, str(index)), weight, group
