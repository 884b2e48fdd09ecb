"""Loading data for wrapped models."""

from __future__ import annotations

from popdist_torch.data.accessor import AsynchronousDataAccessor
from popdist_torch.data.in_step import in_step
from popdist_torch.data.loader import DataLoader

__all__ = ["AsynchronousDataAccessor", "DataLoader", "in_step"]
