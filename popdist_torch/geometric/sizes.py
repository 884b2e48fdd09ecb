"""The numbers of nodes and edges of graphs, by their types; None is the type of plain graphs."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch_geometric.data import HeteroData

Size: TypeAlias = int | dict[Any, int]
Counts: TypeAlias = dict[Any, int]


def stores_of(graph: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What has the tensors of each node type, and of each edge type."""
    if isinstance(graph, HeteroData):
        return dict(graph.node_items()), dict(graph.edge_items())
    return {None: graph}, {None: graph}


def sizes_of(graph: Any) -> tuple[Counts, Counts]:
    """The numbers of nodes and of edges of each type."""
    nodes, edges = stores_of(graph)
    return (
        {kind: int(store.num_nodes) for kind, store in nodes.items()},
        {kind: int(store.num_edges) for kind, store in edges.items()},
    )


def by_type(size: Size) -> Counts:
    """A size of options as numbers by type."""
    return size if isinstance(size, dict) else {None: size}
