"""Loading data for wrapped models: loaders, samplers, and batches from another process."""

from __future__ import annotations

from popdist_torch.data.accessor import AsynchronousDataAccessor
from popdist_torch.data.loader import DataLoader
from popdist_torch.data.unknown_length import in_step

__all__ = ["AsynchronousDataAccessor", "DataLoader", "in_step"]
