"""Graphs as arguments and results of wrapped models."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.data import Data, HeteroData

from popdist_torch.arguments import ICustomArgParser, registerCustomArgParser
from popdist_torch.geometric.common import DataBatch, HeteroDataBatch

if TYPE_CHECKING:
    from collections.abc import Iterator


class PyGArgsParser(ICustomArgParser):
    """Takes the tensors out of graphs and batches of graphs, and puts others into them."""

    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """The tensors of a graph.

        Args:
            struct: A graph, or a batch of graphs.

        Returns:
            Its tensors: those of the whole graph, then of each type of nodes and edges.
        """
        for store, key in _places(struct):
            yield store[key]

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """A graph like another one, with other tensors.

        Args:
            original_structure: The other graph.
            tensor_iterator: The tensors, in the order of `yieldTensors`.

        Returns:
            The new graph; other values are those of the other one.
        """
        graph = copy.copy(original_structure)
        for store, key in _places(graph):
            store[key] = next(tensor_iterator)
        return graph


def _places(graph: Any) -> list[tuple[Any, str]]:
    return [
        (store, key)
        for store in graph.stores
        for key in sorted(store.keys())
        if isinstance(store[key], torch.Tensor)
    ]


def register_parsers() -> None:
    """Lets wrapped models take and return graphs."""
    for kind in (Data, HeteroData, DataBatch, HeteroDataBatch):
        registerCustomArgParser(kind, PyGArgsParser())
