"""The weights of torch's optimizers in a connected program that uses none of popdist's adapters.

Such a program exchanges gradients by means of its own, by Horovod's optimizer or by
DistributedDataParallel. If it forgets that for a model, or broadcasts no first weights, each
instance ends with a model of its own. So the weights are stated as the program ends. What instances
hold as shards of one model is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from popdist.checks.trained import Trained, is_connected

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDED = ("device_mesh", "_is_flat_param", "_fsdp_flattened")
"""Attributes of the parameters of fully_shard, and of the older FullyShardedDataParallel."""

_ELEMENTS = 4096
"""First elements of a weight that are stated: models that train apart differ everywhere."""

_stated: WeakKeyDictionary[Any, Trained | None] = WeakKeyDictionary()
"""The statement of each optimizer's weights; a deleted optimizer states its last ones."""


def note_step(optimizer: Any) -> None:
    """Notes an optimizer after its first step.

    Args:
        optimizer: One of torch.
    """
    if optimizer in _stated or not is_connected():
        return
    groups = optimizer.param_groups
    _stated[optimizer] = (
        None
        if _are_shards([weight for _, weight in _weights(groups)])
        else Trained(type(optimizer).__name__, lambda: _weights(groups), _array, is_own=True)
    )


def _weights(groups: Any) -> Iterator[tuple[str, Any]]:
    weights = [weight for group in groups for weight in group["params"]]
    return ((f"weight {n} of shape {[*weight.shape]}", weight) for n, weight in enumerate(weights))


def _are_shards(weights: list[Any]) -> bool:
    # Optimizers that share their work, such as DeepSpeed's, hold flat pieces.
    are_flat = all(weight.dim() <= 1 for weight in weights)
    return are_flat or any(hasattr(weight, mark) for weight in weights for mark in SHARDED)


def _array(weight: Any) -> Any:
    import torch

    # As bytes, since numpy has no bfloat16.
    return weight.detach().flatten()[:_ELEMENTS].cpu().contiguous().view(torch.uint8).numpy()
