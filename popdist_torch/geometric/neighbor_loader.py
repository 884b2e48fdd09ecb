"""``FixedSizeNeighborLoader``: batches of sampled neighbourhoods of one large graph."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch_geometric.loader import NeighborLoader

from popdist_torch.data import DataLoader
from popdist_torch.geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from popdist_torch.geometric.fixed_size_options import FixedSizeOptions
from popdist_torch.geometric.pyg_dataloader import OverSizeStrategy, single
from popdist_torch.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SAMPLING = (
    "input_time",
    "replace",
    "subgraph_type",
    "disjoint",
    "temporal_strategy",
    "time_attr",
    "weight_attr",
    "transform",
    "transform_sampler_output",
    "is_sorted",
    "neighbor_sampler",
    "directed",
)
"""Arguments that are those of PyTorch Geometric's own loader."""

_OF_THE_BATCH = ("batch_size", "input_id")
"""Values of a sampled graph that concern its first nodes only, and get no padding."""


class PyGFixedSizeNeighborLoader(torch.utils.data.DataLoader[Any]):
    """Samples neighbourhoods of nodes, and pads them to one size.

    Args:
        data: The graph.
        num_neighbors: Neighbours that are sampled in each step.
        input_nodes: The nodes; all by default. In graphs with types, a type, and perhaps nodes.
        batch_size: Nodes of a batch.
        over_size_strategy: What happens to batches that are too large.
        fixed_size_options: The size of a batch; by default that of the largest of many batches.
        add_pad_masks: Whether a batch has masks of what is real.
        follow_batch: Keys that get a vector of assignments.
        exclude_keys: Keys that are not in a batch.
        **kwargs: As for ``torch_geometric.loader.NeighborLoader`` and torch's ``DataLoader``.
    """

    _combined: ClassVar[Callable[..., Any]] = staticmethod(single)

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        fixed_size_options: FixedSizeOptions | None = None,
        add_pad_masks: bool | None = True,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("filter_per_worker", None)
        sampling = {name: kwargs.pop(name) for name in _SAMPLING if name in kwargs}
        native = NeighborLoader(
            data, num_neighbors, input_nodes=input_nodes, batch_size=batch_size, **sampling
        )
        size = fixed_size_options or FixedSizeOptions.from_loader(native)
        collater = FixedSizeCollater(
            size,
            add_masks_to_batch=add_pad_masks,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
            **over_size_strategy.trims,
        )
        found = Neighborhoods(native, collater)
        self.nativeCollate, self.fixedSizeCollate = found.sampled, found.padded
        super().__init__(
            dataset=cast("Any", range(len(native.dataset))),
            batch_size=batch_size,
            collate_fn=self._combined(found, batch_size),
            **kwargs,
        )


class FixedSizeNeighborLoader(PyGFixedSizeNeighborLoader, DataLoader):
    """Samples neighbourhoods of nodes, and pads them to one size.

    Args:
        data: The graph.
        num_neighbors: Neighbours that are sampled in each step.
        input_nodes: The nodes; all by default. In graphs with types, a type, and perhaps nodes.
        batch_size: Nodes of a batch of one replica.
        over_size_strategy: What happens to batches that are too large.
        fixed_size_options: The size of a batch; by default that of the largest of many batches.
        add_pad_masks: Whether a batch has masks of what is real.
        follow_batch: Keys that get a vector of assignments.
        exclude_keys: Keys that are not in a batch.
        options: Those of the model.
        **kwargs: As for ``torch_geometric.loader.NeighborLoader`` and `popdist_torch.DataLoader`.
    """

    _combined = CombinedBatchingCollater

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        fixed_size_options: FixedSizeOptions | None = None,
        add_pad_masks: bool | None = True,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs["options"] = Options() if options is None else options
        super().__init__(
            data,
            num_neighbors,
            input_nodes,
            batch_size,
            over_size_strategy,
            fixed_size_options,
            add_pad_masks,
            follow_batch,
            exclude_keys,
            **kwargs,
        )


class Neighborhoods:
    """Samples the neighbourhood of nodes, with padding.

    Args:
        native: Samples.
        collater: Adds the padding.
    """

    def __init__(self, native: NeighborLoader, collater: FixedSizeCollater) -> None:
        self._native = native
        self._collater = collater

    def __call__(self, indices: list[int]) -> Any:
        """The graph of some nodes, by their places among the input nodes."""
        return self.padded(self.sampled(indices))

    def sampled(self, indices: list[int]) -> Any:
        """The graph of some nodes without padding."""
        return self._native(indices)

    def padded(self, graph: Any) -> Any:
        """A sampled graph with padding."""
        kind = self._native.input_data.input_type
        kept = graph if kind is None else graph[kind]
        apart = {name: kept[name] for name in _OF_THE_BATCH if name in kept}
        graph = copy.copy(graph)
        for name in apart:
            del (graph if kind is None else graph[kind])[name]
        batch = self._collater([graph])
        found = batch if kind is None else batch[kind]
        for name, value in apart.items():
            found[name] = value
        return batch
