"""The types of joined graphs, which PyTorch Geometric makes as it joins some."""

from __future__ import annotations

from typing import Any

from torch_geometric.data import Batch, Data, HeteroData

__all__ = ["DataBatch", "HeteroDataBatch"]

COUNTS = ("num_nodes", "num_edges")
"""The numbers of a combined batch that are those of one of its batches, as published."""

DataBatch = type(Batch(_base_cls=Data))
HeteroDataBatch = type(Batch(_base_cls=HeteroData))


def _stored_or_counted(name: str) -> property:
    """A number that a graph with types takes from its values, as a plain graph does."""

    def number(graph: Any) -> Any:
        whole = graph._global_store  # noqa: SLF001 - public API has no name
        return whole[name] if name in whole else getattr(super(HeteroDataBatch, graph), name)

    return property(number)


for _name in COUNTS:
    setattr(HeteroDataBatch, _name, _stored_or_counted(_name))
