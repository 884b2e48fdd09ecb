"""Torch's own loader of clusters of one large graph, in batches of one size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch_geometric.loader import ClusterData, ClusterLoader

from popdist_torch.geometric.collate import FixedSizeCollater
from popdist_torch.geometric.pyg_dataloader import OverSizeStrategy, single

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_torch.geometric.fixed_size_options import FixedSizeOptions

__all__ = ["FixedSizeClusterLoader"]

_TWO = 2  # the clusters of a batch are one graph, and there is one of padding


class FixedSizeClusterLoader(torch.utils.data.DataLoader[Any]):
    """Joins clusters into batches of one size.

    Args:
        cluster_data: The clusters.
        fixed_size_options: The size of a batch, with two graphs.
        batch_size: Clusters of a batch.
        over_size_strategy: What happens to batches that are too large.
        add_pad_masks: Whether a batch has masks of what is real.
        **kwargs: As for ``torch.utils.data.DataLoader``.

    Raises:
        AssertionError: An argument contradicts the loader.
    """

    _combined: ClassVar[Callable[..., Any]] = staticmethod(single)

    def __init__(
        self,
        cluster_data: ClusterData,
        fixed_size_options: FixedSizeOptions,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool | None = True,
        **kwargs: Any,
    ) -> None:
        if fixed_size_options.num_graphs != _TWO:
            raise AssertionError(
                "The number of graphs in a batch specified by the fixed sized options must be 2 "
                f"when using the {type(self).__name__}, currently it is set to "
                f"{fixed_size_options.num_graphs}"
            )
        refused = {"collate_fn", "batch_sampler", "shuffle", "exclude_keys"} & set(kwargs)
        if refused:
            raise AssertionError(f"{type(self).__name__} does not support {sorted(refused)}.")
        collater = Clusters(
            cluster_data,
            FixedSizeCollater(
                fixed_size_options, add_masks_to_batch=add_pad_masks, **over_size_strategy.trims
            ),
        )
        super().__init__(
            dataset=cast("Any", range(len(cluster_data))),
            batch_size=batch_size,
            collate_fn=self._combined(collater, batch_size),
            **kwargs,
        )


class Clusters:
    """Joins clusters into one graph with padding.

    Args:
        cluster_data: The clusters.
        collater: Adds the padding.
    """

    def __init__(self, cluster_data: ClusterData, collater: FixedSizeCollater) -> None:
        self._join = ClusterLoader(cluster_data).collate_fn
        self._collater = collater

    def __call__(self, indices: list[int]) -> Any:
        """The graph of some clusters."""
        return self._collater([self._join(indices)])
