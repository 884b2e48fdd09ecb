"""Loading data for wrapped models."""

from __future__ import annotations

from popdist_torch.data.loader import DataLoader

__all__ = ["DataLoader"]
