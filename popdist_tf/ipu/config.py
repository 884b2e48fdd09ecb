"""``ipu.config``: the configuration of the system."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.config.ipu_config import IPUConfig, configure_ipu_system, reset_ipu_configuration
from popdist_tf.config.tables import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)

__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "configure_ipu_system",
    "reset_ipu_configuration",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
