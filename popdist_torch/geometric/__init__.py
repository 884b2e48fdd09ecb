"""``poptorch_geometric``: loaders of PyTorch Geometric whose batches have one fixed size.

Graphs have different sizes, and a wrapped model takes arguments of one shape. The loaders add
graphs of padding, with masks that say which nodes, edges and graphs are real. It needs the extra
``geometric``.
"""

from __future__ import annotations

from typing import Any

from popdist.sdk.surface import missing
from popdist_torch.geometric.collate import make_exclude_keys
from popdist_torch.geometric.dataloader import (
    FixedSizeDataLoader,
    FixedSizeStrategy,
    OverSizeStrategy,
)
from popdist_torch.geometric.fixed_size_options import FixedSizeOptions
from popdist_torch.geometric.types import PyGArgsParser, register_parsers
from popdist_torch.geometric.utils import TrainingStepper, set_aggregation_dim_size

__all__ = [
    "FixedSizeDataLoader",
    "FixedSizeOptions",
    "FixedSizeStrategy",
    "OverSizeStrategy",
    "PyGArgsParser",
    "TrainingStepper",
    "make_exclude_keys",
    "set_aggregation_dim_size",
]

register_parsers()


def __getattr__(name: str) -> Any:
    """Names that the SDK has and this module refuses."""
    return missing(__name__, name)
