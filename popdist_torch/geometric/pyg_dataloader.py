"""The strategies, under the name of the module from which older programs import them."""

from __future__ import annotations

from popdist_torch.geometric.dataloader import FixedSizeStrategy, OverSizeStrategy

__all__ = ["FixedSizeStrategy", "OverSizeStrategy"]
