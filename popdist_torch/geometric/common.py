"""The types of joined graphs, which PyTorch Geometric makes as it joins some."""

from __future__ import annotations

from torch_geometric.data import Batch, Data, HeteroData

__all__ = ["DataBatch", "HeteroDataBatch"]

DataBatch = type(Batch(_base_cls=Data))
HeteroDataBatch = type(Batch(_base_cls=HeteroData))
