"""``ipu.config``: the configuration of the system."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.config.enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from popdist_tf.config.ipu_config import IPUConfig
from popdist_tf.config.system import configure_ipu_system, reset_ipu_configuration

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
