"""What ``poptorch_geometric`` publishes."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import refused, surface, works

_OPTIONS = (
    "from_dataset",
    "from_loader",
    "is_hetero",
    "to_hetero",
    "total_num_edges",
    "total_num_nodes",
)

_MASKERS = (
    "DecoratedLayer",
    "Entries",
    "Layer",
    "LayerMasker",
    "Mask",
    "Masker",
    "NoMasker",
    "PreLayerMasker",
)

SURFACE = surface(
    "poptorch_geometric",
    "popdist_torch.geometric",
    works("FixedSizeDataLoader", "FixedSizeOptions", "FixedSizeStrategy", "OverSizeStrategy"),
    works(*(f"FixedSizeOptions.{name}" for name in _OPTIONS)),
    works("PyGArgsParser", "make_exclude_keys", "set_aggregation_dim_size", "TrainingStepper"),
    works("common", "common.DataBatch", "common.HeteroDataBatch"),
    works("cluster_loader", "cluster_loader.FixedSizeClusterLoader"),
    works("collate", "collate.CombinedBatchingCollater", "collate.FixedSizeCollater"),
    works("dataloader", "dataloader.DataLoader", "dataloader.FixedSizeDataLoader"),
    works("dataloader.FixedSizeStrategy", "dataloader.OverSizeStrategy"),
    works(*(f"masker.{name}" for name in _MASKERS), "masker"),
    works("pyg_cluster_loader", "pyg_cluster_loader.FixedSizeClusterLoader"),
    works("pyg_collate", "pyg_collate.Collater"),
    works("pyg_dataloader", "pyg_dataloader.DataLoader", "pyg_dataloader.FixedSizeDataLoader"),
    works("pyg_dataloader.FixedSizeStrategy", "pyg_dataloader.OverSizeStrategy"),
    works("fixed_size_options", "fixed_size_options.FixedSizeOptions"),
    works("neighbor_loader", "neighbor_loader.FixedSizeNeighborLoader"),
    works("neighbor_loader.PyGFixedSizeNeighborLoader"),
    works("stream_packing_sampler", "stream_packing_sampler.StreamPackingSampler"),
    works("types", "types.PyGArgsParser"),
    works("utils", "utils.set_aggregation_dim_size", "utils.TrainingStepper"),
    refused(
        "operators of torch_geometric with dynamic shapes run as they are",
        "ops",
        "override",
        instead="torch_geometric.nn",
    ),
)
