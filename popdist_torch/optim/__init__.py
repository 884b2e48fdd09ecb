"""Optimizers with PopTorch's extra settings; plain ones of ``torch.optim`` work as well."""

from __future__ import annotations

from popdist_torch.optim.adam import Adam, AdamW
from popdist_torch.optim.lamb import LAMB
from popdist_torch.optim.rmsprop import RMSprop
from popdist_torch.optim.scaled import Scaled as Optimizer
from popdist_torch.optim.scaled import VariableAttributes
from popdist_torch.optim.sgd import SGD

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
