"""The PyTorch adapter: the PopTorch programming model on ordinary hosts, over real Horovod."""

from __future__ import annotations

from popdist_torch import optim, options
from popdist_torch.data import AsynchronousDataAccessor, DataLoader
from popdist_torch.errors import Error
from popdist_torch.executor.executor import Executor as PoplarExecutor
from popdist_torch.executor.inference import inferenceModel
from popdist_torch.executor.training import trainingModel
from popdist_torch.ops import identity_loss
from popdist_torch.options import (
    AnchorMode,
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    DataPartition,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    Options,
    OutputMode,
    OverlapMode,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    ReductionType,
    SerialPhasedExecution,
    ShardedExecution,
    SharingStrategy,
    Stage,
    SyncPattern,
    TensorLocationSettings,
    VariableRetrievalMode,
)

__all__ = [
    "AnchorMode",
    "AsynchronousDataAccessor",
    "AutoStage",
    "CommGroupType",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "DataPartition",
    "Error",
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
    "PoplarExecutor",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "VariableRetrievalMode",
    "identity_loss",
    "inferenceModel",
    "optim",
    "options",
    "trainingModel",
]
