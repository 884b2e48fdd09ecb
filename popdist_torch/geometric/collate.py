"""Batches of graphs with fixed numbers of nodes, edges and graphs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.data import Batch, HeteroData

from popdist_torch.geometric.common import COUNTS
from popdist_torch.geometric.sizes import by_type, sizes_of, stores_of
from popdist_torch.geometric.types import PyGArgsParser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from popdist_torch.geometric.fixed_size_options import FixedSizeOptions
    from popdist_torch.geometric.sizes import Counts

__all__ = ["CombinedBatchingCollater", "FixedSizeCollater", "make_exclude_keys"]

_ROWS = {"edge_index": 1}
"""The dimension of tensors that counts edges or nodes, where it is not the first."""


def make_exclude_keys(include_keys: Iterable[str], data: Any) -> tuple[str, ...]:
    """The keys of a graph that are not to be in a batch.

    Args:
        include_keys: The keys that are.
        data: The graph.

    Returns:
        All other keys.
    """
    return tuple(set(_keys(data)) - set(include_keys))


def _keys(data: Any) -> Iterable[str]:
    keys = data.keys  # a property in older versions
    found: Iterable[str] = keys() if callable(keys) else keys
    return found


class FixedSizeCollater:
    """Joins graphs into a batch, and adds graphs of padding to it.

    Args:
        fixed_size_options: The size of a batch.
        add_masks_to_batch: Whether the batch has ``graphs_mask``, ``nodes_mask`` and
            ``edges_mask``, which are true for what is real.
        trim_nodes: Whether nodes are removed at random where there are too many.
        trim_edges: Whether edges are removed at random where there are too many.
        follow_batch: Keys that get a vector of assignments.
        exclude_keys: Keys that are not in the batch.
    """

    def __init__(
        self,
        fixed_size_options: FixedSizeOptions,
        add_masks_to_batch: bool | None = False,
        trim_nodes: bool | None = False,
        trim_edges: bool | None = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
    ) -> None:
        self.opts = fixed_size_options
        self.add_masks_to_batch = add_masks_to_batch
        self.trim_nodes = trim_nodes
        self.trim_edges = trim_edges
        self.follow_batch = list(follow_batch or ())
        self.exclude_keys = list(exclude_keys or ())

    def __call__(self, data_list: Sequence[Any]) -> Any:
        """Makes a batch.

        Args:
            data_list: The graphs, fewer than ``num_graphs``.

        Returns:
            A batch.

        Raises:
            TypeError: It is not a list.
            RuntimeError: The graphs are too many or too large.
        """
        if not isinstance(data_list, list):
            raise TypeError(f"Expected list, got {type(data_list).__name__}.")
        graphs = list(data_list)
        if isinstance(graphs[0], HeteroData) and not self.opts.is_hetero():
            self.opts.to_hetero(graphs[0].node_types, graphs[0].edge_types)
        padding = self.opts.num_graphs - len(graphs)
        if padding < 0:
            raise RuntimeError(
                "The maximum number of graphs requested doesn't allocate enough room for all the "
                f"graphs in the batch: {len(graphs)} graphs and at least one of padding, in "
                f"{self.opts.num_graphs}."
            )
        if self.trim_nodes:
            edges_of = _sum(sizes_of(graph)[1] for graph in graphs)
            most = by_type(self.opts.num_edges)
            pads_edges = any(edges_of.get(kind, 0) < limit for kind, limit in most.items())
            limits = by_type(self.opts.num_nodes)
            graphs = _trimmed(graphs, limits, 0, padding, tight=pads_edges)
        if self.trim_edges:
            graphs = _trimmed(graphs, by_type(self.opts.num_edges), 1, 0)
        real = [_sum(sizes_of(graph)[which] for graph in graphs) for which in (0, 1)]
        left = [self._left(which, real[which], len(graphs)) for which in (0, 1)]
        if not padding and any(count for counts in left for count in counts.values()):
            raise RuntimeError(
                f"Requested to pad a batch to {self.opts.num_graphs} graphs but collater got a "
                f"list of {len(graphs)} graphs and cannot create additional graphs to pad nodes "
                "and edges."
            )
        nodes, edges = left
        able = {kind: _able(kind, count, nodes, padding) for kind, count in edges.items()}
        pads = [
            self._pad(
                graphs[0],
                {kind: _share(count, padding, index) for kind, count in nodes.items()},
                {kind: _share(count, able[kind], index) for kind, count in edges.items()},
            )
            for index in range(padding)
        ]
        batch = Batch.from_data_list([*graphs, *pads], self.follow_batch, self.exclude_keys)
        if self.add_masks_to_batch:
            batch.graphs_mask = torch.arange(self.opts.num_graphs) < len(graphs)
            for stores, counts, free, name in zip(
                stores_of(batch), real, left, ("nodes_mask", "edges_mask"), strict=True
            ):
                for kind, store in stores.items():
                    rows = torch.arange(counts[kind] + free[kind])
                    setattr(store, name, rows < counts[kind])
        return batch

    def _left(self, which: int, real: Counts, graphs: int) -> Counts:
        """The room for padding, by type.

        Raises:
            RuntimeError: There is less than none.
        """
        what = ("nodes", "edges")[which]
        limits = by_type((self.opts.num_nodes, self.opts.num_edges)[which])
        for kind, count in real.items():
            name = what if kind is None else f"{kind} {what}"
            if kind not in limits:
                raise RuntimeError(f"The fixed size options have no number of {name}.")
            if count > limits[kind]:
                raise RuntimeError(
                    f"The fixed sizes given don't allocate enough space for the number of {name} "
                    f"required to fit {graphs} sample(s) into a batch ({self.opts.num_graphs} "
                    f"including extra padded graph(s)): {count}. Increase the maximum number of "
                    f"{name}, currently set to {limits[kind]}, or set `trim_{what}` to remove any "
                    f"excess {name}."
                )
        return {kind: limits[kind] - count for kind, count in real.items()}

    def _pad(self, like: Any, nodes: Counts, edges: Counts) -> Any:
        """A graph of padding; its edges join its first node with itself."""
        graph = copy.copy(like)
        keys_of_parts = set()
        for stores, counts, value, part in zip(
            stores_of(graph),
            (nodes, edges),
            (self.opts.node_pad_value, self.opts.edge_pad_value),
            ("node", "edge"),
            strict=True,
        ):
            for kind, store in stores.items():
                for key in [*store.keys()] if kind is not None else [*_keys(store)]:
                    if kind is None and not _belongs(like, key, part):
                        continue
                    keys_of_parts.add(key)
                    tensor = store[key]
                    if isinstance(tensor, torch.Tensor):
                        store[key] = _filled(key, tensor, counts[kind], value)
                if part == "node" and "num_nodes" in store:
                    store.num_nodes = counts[kind]
        whole = graph._global_store if isinstance(graph, HeteroData) else graph  # noqa: SLF001 - public API has no name
        for key in [*whole.keys()] if isinstance(graph, HeteroData) else [*_keys(graph)]:
            if key in keys_of_parts or key == "num_nodes":
                continue
            value = whole[key]
            if isinstance(value, torch.Tensor):
                whole[key] = torch.full_like(value, self.opts.graph_pad_value)
            else:
                whole[key] = self.opts.pad_graph_defaults.get(key, value)
        return graph


def _belongs(graph: Any, key: str, part: str) -> bool:
    """Whether a value of a plain graph has a row for each node or edge."""
    value = graph[key]
    if not isinstance(value, torch.Tensor):
        return False
    if key == "y" and part == "edge":
        return False
    belongs: bool = graph.is_node_attr(key) if part == "node" else graph.is_edge_attr(key)
    return belongs


def _able(kind: Any, edges: int, nodes: Counts, padding: int) -> int:
    """The number of graphs of padding with a node for edges of a type: the first ones.

    Raises:
        RuntimeError: There is none, and there are edges.
    """
    ends = (None,) if kind is None else (kind[0], kind[-1])
    able = min(padding, *(nodes.get(end, 0) for end in ends))
    if edges and not able:
        raise RuntimeError(
            f"{edges} edges of padding need a node of padding, and the batch has no room for one. "
            "Increase the maximum number of nodes by one for each graph of padding."
        )
    return able


def _filled(key: str, like: torch.Tensor, count: int, value: float) -> torch.Tensor:
    shape = list(like.shape)
    shape[_ROWS.get(key, 0)] = count
    return like.new_full(shape, 0 if key in _ROWS else value)


def _share(count: int, pieces: int, index: int) -> int:
    """The size of a piece, where the first ones are larger by one; 0 after the last piece."""
    return count // pieces + (index < count % pieces) if index < pieces else 0


def _sum(parts: Iterable[Counts]) -> Counts:
    total: Counts = {}
    for part in parts:
        for kind, count in part.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _trimmed(
    graphs: list[Any], limits: Counts, which: int, spare: int, *, tight: bool = False
) -> list[Any]:
    """Graphs without some nodes or edges, chosen at random; each graph keeps one at least.

    Args:
        graphs: The graphs.
        limits: What they may have together, by type.
        which: 0 for nodes, 1 for edges.
        spare: Nodes that are kept free for padding.
        tight: Whether graphs that fit are trimmed, too, where they leave no spare nodes.
    """
    counts = [sizes_of(graph)[which] for graph in graphs]
    keep: dict[Any, tuple[torch.Tensor, ...]] = {}
    for kind, limit in limits.items():
        of_kind = [count.get(kind, 0) for count in counts]
        if sum(of_kind) <= (limit - spare if tight else limit):
            continue
        room = max(limit - spare, sum(1 for count in of_kind if count))
        if room > limit:
            raise RuntimeError(
                f"The number of {('nodes', 'edges')[which]} to trim to ({limit}) is less than the "
                f"number of graphs in the batch ({len(graphs)}), so graphs would be empty."
            )
        keep[kind] = torch.split(_mask(of_kind, room), of_kind)
    if not keep:
        return graphs
    method = ("subgraph", "edge_subgraph")[which]
    return [
        getattr(graph, method)(
            keep[None][index]
            if None in keep
            else {kind: masks[index] for kind, masks in keep.items() if len(masks[index])}
        )
        for index, graph in enumerate(graphs)
    ]


def _mask(counts: list[int], room: int) -> torch.Tensor:
    """Which of all elements are kept: one of each graph, and random others."""
    mask = torch.zeros(sum(counts), dtype=torch.bool)
    start = 0
    for count in counts:
        if count:
            mask[start + int(torch.randint(count, (1,)))] = True
        start += count
    others = (~mask).nonzero().flatten()
    mask[others[torch.randperm(len(others))[: room - int(mask.sum())]]] = True
    return mask


class CombinedBatchingCollater:
    """Makes the combined batch of a wrapped model from batches of one size.

    Args:
        collater: Makes one of them from graphs.
        mini_batch_size: Graphs of one of them; None where each element is a list of graphs.
    """

    def __init__(
        self, collater: Callable[[list[Any]], Any], mini_batch_size: int | None = None
    ) -> None:
        self.mini_batch_size = mini_batch_size
        self.collater = collater
        self.parser = PyGArgsParser()

    def __call__(self, batch: list[Any]) -> Any:
        """Makes a combined batch.

        Args:
            batch: Its graphs, or lists of graphs.

        Returns:
            Tensors in which those of the batches follow each other.

        Raises:
            AssertionError: The graphs do not divide into batches.
        """
        parts = batch
        if not isinstance(batch[0], list):
            size = self.mini_batch_size or len(batch)
            if len(batch) % size:
                raise AssertionError(
                    f"Invalid batch size. Got {len(batch)} graphs and `mini_batch_size={size}`."
                )
            parts = [batch[start : start + size] for start in range(0, len(batch), size)]
        batches = [self.collater(part) for part in parts]
        rows = zip(*(self.parser.yieldTensors(one) for one in batches), strict=True)
        joined = (torch.cat([one.reshape(one.shape or (1,)) for one in row]) for row in rows)
        combined = self.parser.reconstruct(batches[0], joined)
        if isinstance(combined, Batch):
            for name in COUNTS:
                combined[name] = getattr(batches[0], name)
        return combined
