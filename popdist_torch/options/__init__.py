"""The options of the PopTorch API: what acts on a host acts, the rest is kept."""

from __future__ import annotations

from popdist_torch.options.distributed import DistributedOptions as _DistributedOptions
from popdist_torch.options.enums import (
    AnchorMode,
    AutoStage,
    ConnectionType,
    DataLoaderMode,
    DataPartition,
    MatMulSerializationMode,
    MeanReductionStrategy,
    OutputMode,
    OverlapMode,
    ReductionType,
    SyncPattern,
)
from popdist_torch.options.locations import TensorLocationSettings
from popdist_torch.options.options import Options
from popdist_torch.options.placement import Placement

__all__ = [
    "AnchorMode",
    "AutoStage",
    "ConnectionType",
    "DataLoaderMode",
    "DataPartition",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "Options",
    "OutputMode",
    "OverlapMode",
    "Placement",
    "ReductionType",
    "SyncPattern",
    "TensorLocationSettings",
    "_DistributedOptions",
]
