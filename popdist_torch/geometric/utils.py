"""Sizes of aggregations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_geometric.nn import MessagePassing

if TYPE_CHECKING:
    from torch import nn


def set_aggregation_dim_size(model: nn.Module, dim_size: int) -> None:
    """Fixes the number of nodes in the results of message passing.

    Args:
        model: Its layers of message passing are changed.
        dim_size: At least the number of nodes of a batch.
    """

    def fix(_layer: Any, inputs: tuple[Any, ...]) -> Any:
        return {**inputs[-1], "dim_size": dim_size}

    for layer in model.modules():
        if isinstance(layer, MessagePassing):
            layer.register_aggregate_forward_pre_hook(fix)
