"""Interfaces for models that hide nodes, edges and graphs of padding from their layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "DecoratedLayer",
    "Entries",
    "Layer",
    "LayerMasker",
    "Mask",
    "Masker",
    "NoMasker",
    "PreLayerMasker",
]

Entries = torch.Tensor | tuple[torch.Tensor, ...]
Mask = torch.Tensor | None
Layer = Callable[..., Any]
DecoratedLayer = Callable[..., Any]


class Masker(ABC):
    """Hides what is padding in tensors of nodes, edges and graphs."""

    @abstractmethod
    def node_masker(self, node_entries: Entries, mask: Mask = None) -> Entries:
        """The values of nodes without those of padding."""

    @abstractmethod
    def edge_masker(self, edge_entries: Entries, mask: Mask = None) -> Entries:
        """The values of edges without those of padding."""

    @abstractmethod
    def graph_masker(self, graph_entries: Entries, mask: Mask = None) -> Entries:
        """The values of graphs without those of padding."""


class NoMasker(Masker):
    """Hides nothing."""

    def node_masker(self, node_entries: Entries, mask: Mask = None) -> Entries:  # noqa: ARG002
        """The same values."""
        return node_entries

    def edge_masker(self, edge_entries: Entries, mask: Mask = None) -> Entries:  # noqa: ARG002
        """The same values."""
        return edge_entries

    def graph_masker(self, graph_entries: Entries, mask: Mask = None) -> Entries:  # noqa: ARG002
        """The same values."""
        return graph_entries


class LayerMasker(ABC):
    """Makes layers that get their arguments through a masker.

    Args:
        masker: Hides what is padding in the arguments.
    """

    def __init__(self, masker: Masker) -> None:
        self.masker = masker

    @abstractmethod
    def node_masker(self, layer: Layer) -> Layer:
        """A layer of values of nodes, with one more argument: ``mask``."""
        return _behind(self.masker.node_masker, layer)

    @abstractmethod
    def edge_masker(self, layer: Layer) -> Layer:
        """A layer of values of edges, with one more argument: ``mask``."""
        return _behind(self.masker.edge_masker, layer)

    @abstractmethod
    def graph_masker(self, layer: Layer) -> Layer:
        """A layer of values of graphs, with one more argument: ``mask``."""
        return _behind(self.masker.graph_masker, layer)


class PreLayerMasker(LayerMasker):
    """Hides what is padding in the arguments of layers, and changes nothing else."""

    def node_masker(self, layer: Layer) -> Layer:
        """A layer of values of nodes, with one more argument: ``mask``."""
        return super().node_masker(layer)

    def edge_masker(self, layer: Layer) -> Layer:
        """A layer of values of edges, with one more argument: ``mask``."""
        return super().edge_masker(layer)

    def graph_masker(self, layer: Layer) -> Layer:
        """A layer of values of graphs, with one more argument: ``mask``."""
        return super().graph_masker(layer)


def _behind(mask_of: Callable[..., Any], layer: Layer) -> Layer:
    def masked(*entries: torch.Tensor, mask: Mask = None) -> Any:
        return layer(*mask_of(entries, mask=mask))

    return masked
