"""``ipu.config``: the configuration of the system."""

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
