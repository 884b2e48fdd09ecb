"""``FixedSizeOptions``: the numbers of nodes, edges and graphs of each batch."""

from __future__ import annotations

from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

from torch_geometric.data import HeteroData
from torch_geometric.data.summary import Summary

from popdist_torch.geometric.sizes import Size, sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class FixedSizeOptions:
    """The size to which batches are padded.

    Args:
        num_nodes: Nodes of a batch, or of each node type.
        num_edges: Edges of a batch, or of each edge type; ``num_nodes * (num_nodes - 1)`` by
            default.
        num_graphs: Graphs of a batch, of which at least one is padding.
        node_pad_value: Fills features of nodes; 0 by default.
        edge_pad_value: Fills features of edges; 0 by default.
        graph_pad_value: Fills features of graphs; 0 by default.
        pad_graph_defaults: Values of padding graphs by key, for what is not a tensor.

    Raises:
        ValueError: There is no graph for padding.
    """

    def __init__(
        self,
        num_nodes: Size,
        num_edges: Size | None = None,
        num_graphs: int = 2,
        node_pad_value: float | None = None,
        edge_pad_value: float | None = None,
        graph_pad_value: float | None = None,
        pad_graph_defaults: dict[str, Any] | None = None,
    ) -> None:
        require_room(num_graphs)
        self.num_nodes = num_nodes
        nodes = _total(num_nodes)
        self.num_edges: Size = num_edges or nodes * (nodes - 1)
        self.num_graphs = num_graphs
        self.node_pad_value = node_pad_value or 0.0
        self.edge_pad_value = edge_pad_value or 0.0
        self.graph_pad_value = graph_pad_value or 0.0
        self.pad_graph_defaults = pad_graph_defaults or {}

    def is_hetero(self) -> bool:
        """Whether nodes and edges have a number for each type.

        Returns:
            True if both have.
        """
        return isinstance(self.num_nodes, dict) and isinstance(self.num_edges, dict)

    def to_hetero(
        self, node_types: Sequence[str], edge_types: Sequence[tuple[str, str, str]]
    ) -> FixedSizeOptions:
        """Gives each type the number that all had together, where there is one number.

        Args:
            node_types: The types of nodes.
            edge_types: The types of edges.

        Returns:
            These options.
        """
        if not isinstance(self.num_nodes, dict):
            self.num_nodes = dict.fromkeys(node_types, self.num_nodes)
        if not isinstance(self.num_edges, dict):
            self.num_edges = dict.fromkeys(edge_types, self.num_edges)
        return self

    @property
    def total_num_nodes(self) -> int:
        """Nodes of all types."""
        return _total(self.num_nodes)

    @property
    def total_num_edges(self) -> int:
        """Edges of all types."""
        return _total(self.num_edges)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int,
        sample_limit: int | None = None,
        progress_bar: bool | None = None,
    ) -> FixedSizeOptions:
        """Options that fit each batch of a data set.

        Args:
            dataset: The graphs.
            batch_size: Graphs of a batch, with one for padding.
            sample_limit: No effect, as published.
            progress_bar: Whether reading the set shows its progress.

        Returns:
            The options.

        Raises:
            ValueError: There is no graph for padding.
        """
        del sample_limit
        require_room(batch_size)
        summary = Summary.from_dataset(dataset, progress_bar=progress_bar)

        def enough(of_all: Any, by_type: Any) -> Size:
            if by_type:
                return {kind: enough(one, None) for kind, one in by_type.items()}  # type: ignore[misc]
            return int(of_all.max) * (batch_size - 1) + 1

        return cls(
            enough(summary.num_nodes, summary.num_nodes_per_type),
            enough(summary.num_edges, summary.num_edges_per_type),
            batch_size,
        )

    @classmethod
    def from_loader(cls, loader: Iterable[Any], sample_limit: int = 1000) -> FixedSizeOptions:
        """Options for the largest of some batches of a loader; later batches may be larger.

        Args:
            loader: Gives graphs or batches of graphs.
            sample_limit: The number of batches that are read; short loaders repeat.

        Returns:
            The options, with room for one node, edge and graph of padding.
        """
        nodes: dict[Any, int] = {}
        edges: dict[Any, int] = {}
        graphs, hetero = 1, False
        # An epoch of a sampling loader differs from the next one.
        for batch in islice(chain.from_iterable(repeat(loader)), sample_limit):
            hetero = isinstance(batch, HeteroData)
            for largest, found in zip((nodes, edges), sizes_of(batch), strict=True):
                for kind, count in found.items():
                    largest[kind] = max(largest.get(kind, 0), count)
            graphs = max(graphs, getattr(batch, "num_graphs", 1))

        def with_room(largest: dict[Any, int]) -> Size:
            more = {kind: count + 1 for kind, count in largest.items()}
            return more if hetero else more[None]

        return cls(with_room(nodes), with_room(edges), graphs + 1)

    def __repr__(self) -> str:
        room = "(At least one {} reserved for padding)"
        sizes = ("num_nodes", "node"), ("num_edges", "edge"), ("num_graphs", "graph")
        parts = [f"{name}={getattr(self, name)} {room.format(what)}" for name, what in sizes]
        values = "node_pad_value", "edge_pad_value", "graph_pad_value", "pad_graph_defaults"
        parts += [f"{name}={getattr(self, name)}" for name in values]
        return f"{type(self).__name__}({', '.join(parts)})"


def require_room(num_graphs: int) -> None:
    """Checks that a batch has a graph for padding.

    Raises:
        ValueError: It has none.
    """
    if num_graphs < 2:  # noqa: PLR2004 - a real one and one of padding
        raise ValueError(
            "The number of graphs in the batch must be at least 2: at least 1 real graph, and a "
            f"graph of padding; this is {num_graphs}"
        )


def _total(size: Size) -> int:
    return sum(size.values()) if isinstance(size, dict) else size
