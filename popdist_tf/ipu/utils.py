"""``ipu.utils``: configuration as SDK 2.2 and before had it, and small helpers."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.config.ipu_config import configure_ipu_system, reset_ipu_configuration
from popdist_tf.config.legacy import (
    auto_select_ipus,
    create_ipu_config,
    select_ipus,
    set_compilation_options,
    set_convolution_options,
    set_experimental_multi_replica_distribution_options,
    set_floating_point_behaviour_options,
    set_gcl_options,
    set_io_tile_options,
    set_ipu_connection_type,
    set_ipu_model_options,
    set_matmul_options,
    set_norm_options,
    set_optimization_options,
    set_pooling_options,
    set_recomputation_options,
    set_report_options,
    set_serialization_options,
    set_transfer_options,
)
from popdist_tf.config.tables import DeviceConnectionType, ExecutionProfileType, SelectionOrder
from popdist_tf.loops.operations import (
    move_variable_initialization_to_cpu,
    reset_ipu_seed,
    running_on_ipu_model,
)

__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "SelectionOrder",
    "auto_select_ipus",
    "configure_ipu_system",
    "create_ipu_config",
    "move_variable_initialization_to_cpu",
    "reset_ipu_configuration",
    "reset_ipu_seed",
    "running_on_ipu_model",
    "select_ipus",
    "set_compilation_options",
    "set_convolution_options",
    "set_experimental_multi_replica_distribution_options",
    "set_floating_point_behaviour_options",
    "set_gcl_options",
    "set_io_tile_options",
    "set_ipu_connection_type",
    "set_ipu_model_options",
    "set_matmul_options",
    "set_norm_options",
    "set_optimization_options",
    "set_pooling_options",
    "set_recomputation_options",
    "set_report_options",
    "set_serialization_options",
    "set_transfer_options",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
