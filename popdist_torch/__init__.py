"""The PyTorch adapter: the PopTorch programming model on ordinary hosts, over real Horovod."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from popdist.sdk.surface import missing
from popdist_torch import autocasting, enums, optim, options, profiling
from popdist_torch.arguments import ICustomArgParser, registerCustomArgParser
from popdist_torch.autocasting import autocast
from popdist_torch.checkpoint import Checkpoint
from popdist_torch.data import AsynchronousDataAccessor, DataLoader, in_step
from popdist_torch.ddp import ddp_hook
from popdist_torch.errors import Error, RecoverableError, UnrecoverableError
from popdist_torch.executor.compile_hooks import registerPostCompileHook, registerPreCompileHook
from popdist_torch.executor.executor import Executor as PoplarExecutor
from popdist_torch.executor.inference import inferenceModel
from popdist_torch.executor.training import trainingModel
from popdist_torch.global_batch_hooks import global_batch_hook
from popdist_torch.global_means import global_mean
from popdist_torch.horovod.batch_norm import SyncBatchNorm
from popdist_torch.ipu_device import register
from popdist_torch.ops import (
    CPU,
    Attribute,
    BeginBlock,
    Block,
    BlockFunction,
    MultiConv,
    NameScope,
    cond,
    ctc_beam_search_decoder,
    custom_op,
    dynamic_slice,
    dynamic_update,
    for_loop,
    host_op,
    identity_loss,
    ipu_print_tensor,
    isRunningOnIpu,
    module_repr,
    nop,
    recomputationCheckpoint,
    removeBlocks,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from popdist_torch.options import (
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
from popdist_torch.profiling import ipuHardwareIsAvailable, ipuHardwareVersion, logger, setLogLevel
from popdist_torch.unexchanged import local_training, watch_if_launched

__all__ = [
    "CPU",
    "AnchorMode",
    "AsynchronousDataAccessor",
    "Attribute",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "Checkpoint",
    "CommGroupType",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "DataPartition",
    "Error",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConv",
    "MultiConvPlanType",
    "NameScope",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncBatchNorm",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "autocast",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "ddp_hook",
    "dynamic_slice",
    "dynamic_update",
    "enums",
    "for_loop",
    "global_batch_hook",
    "global_mean",
    "host_op",
    "identity_loss",
    "in_step",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "local_training",
    "logger",
    "module_repr",
    "nop",
    "optim",
    "options",
    "profiling",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "removeBlocks",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "trainingModel",
]


watch_if_launched()
register()
autocasting.register()


_MODULES = ("_impl", "_poplar_executor", "_utils", "poptorch_core")
"""PopTorch's modules that public libraries use without importing them."""


def __getattr__(name: str) -> Any:
    """Names that PopTorch has and this module refuses; others with the nearest that there is."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    return missing(__name__, name)
