"""``FixedSizeClusterLoader``: combined batches of clusters of one large graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_torch.data import DataLoader
from popdist_torch.geometric import pyg_cluster_loader
from popdist_torch.geometric.collate import CombinedBatchingCollater
from popdist_torch.geometric.pyg_dataloader import OverSizeStrategy
from popdist_torch.options import Options

if TYPE_CHECKING:
    from torch_geometric.loader import ClusterData

    from popdist_torch.geometric.fixed_size_options import FixedSizeOptions


class FixedSizeClusterLoader(pyg_cluster_loader.FixedSizeClusterLoader, DataLoader):
    """Joins clusters into batches of one size.

    Args:
        cluster_data: The clusters.
        fixed_size_options: The size of a batch, with two graphs.
        batch_size: Clusters of a batch of one replica.
        over_size_strategy: What happens to batches that are too large.
        add_pad_masks: Whether a batch has masks of what is real.
        options: Those of the model.
        **kwargs: As for `popdist_torch.DataLoader`.

    Raises:
        AssertionError: An argument contradicts the loader.
    """

    _combined = CombinedBatchingCollater

    def __init__(
        self,
        cluster_data: ClusterData,
        fixed_size_options: FixedSizeOptions,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool | None = True,
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs["options"] = Options() if options is None else options
        super().__init__(
            cluster_data,
            fixed_size_options,
            batch_size,
            over_size_strategy,
            add_pad_masks,
            **kwargs,
        )
