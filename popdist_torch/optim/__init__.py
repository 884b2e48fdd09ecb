"""Optimizers with PopTorch's extra settings; plain ones of ``torch.optim`` work as well."""

from __future__ import annotations

from popdist_torch.optim.adam import Adam, AdamW
from popdist_torch.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW"]
