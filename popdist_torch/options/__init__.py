"""The options of the PopTorch API; options without a meaning on a host are stored."""

from __future__ import annotations

from popdist_torch.errors import ConfigFileError
from popdist_torch.options import enums as _enums
from popdist_torch.options.device_only import TensorLocationSettings
from popdist_torch.options.distributed import DistributedOptions as _DistributedOptions
from popdist_torch.options.enums import *  # noqa: F403 - its list of names serves here too
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
    "ConfigFileError",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "Placement",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "_DistributedOptions",
]
__all__ += _enums.__all__
