"""The options of the PopTorch API; options without a meaning on a host are stored."""

from __future__ import annotations

from popdist_torch.errors import ConfigFileError
from popdist_torch.options.device_only import TensorLocationSettings
from popdist_torch.options.distributed import DistributedOptions as _DistributedOptions
from popdist_torch.options.enums import (
    AnchorMode,
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    DataPartition,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from popdist_torch.options.options import Options
from popdist_torch.options.placement import Placement
from popdist_torch.options.strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)

__all__ = [
    "AnchorMode",
    "AutoStage",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "DataLoaderMode",
    "DataPartition",
    "HalfFloatCastingBehavior",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "Placement",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "VariableRetrievalMode",
    "_DistributedOptions",
]
