"""The options of SDK 2.2 and before: a record, and functions that change it.

Options that concern an IPU alone are stored without effect on a host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from popdist_tf.errors import ConfigConflictError, ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class IpuOptions:
    """Stands for the options protobuf of SDK 2.2 and before.

    Attributes:
        device_config: Selected devices: an entry for each, either their id or how many there are.
        multi_replica_process_count: Processes of the job; 0 where none was set.
        multi_replica_process_index: This process among them.
        settings: Everything else that was set, by name; without effect on a host.
    """

    device_config: list[dict[str, int]] = field(default_factory=list)
    multi_replica_process_count: int = 0
    multi_replica_process_index: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    def num_devices(self) -> int:
        """How many devices are selected, for all replicas of this process."""
        return sum(entry.get("auto_count", 1) for entry in self.device_config) or 1

    def num_automatic(self) -> int:
        """How many devices the first system of the program has, where their number selects them."""
        return next((entry.get("auto_count", 1) for entry in self.device_config), 1)

    def check(self) -> None:
        """Does nothing: the functions below have checked the options already."""


def create_ipu_config(**settings: Any) -> IpuOptions:
    """A new record of options.

    Args:
        **settings: The published keyword arguments; kept, without effect on a host.

    Returns:
        The record.
    """
    return IpuOptions(settings=settings)


def auto_select_ipus(opts: IpuOptions, num_ipus: int | list[int] | tuple[int, ...]) -> IpuOptions:
    """Selects a number of devices, whichever are free.

    Args:
        opts: The record.
        num_ipus: How many; a list for several configurations.

    Returns:
        The record.

    Raises:
        ConfigConflictError: Devices are selected already.
    """
    _refuse_second_selection(opts)
    counts = num_ipus if isinstance(num_ipus, (list, tuple)) else [num_ipus]
    opts.device_config = [{"auto_count": count} for count in counts]
    return opts


def select_ipus(opts: IpuOptions, indices: list[int] | tuple[int, ...]) -> IpuOptions:
    """Selects devices by id.

    Args:
        opts: The record.
        indices: The device ids.

    Returns:
        The record.

    Raises:
        ConfigConflictError: Devices are selected already.
        ConfigTypeError: ``indices`` is not a list or tuple.
        ConfigError: A device is named twice.
    """
    _refuse_second_selection(opts)
    if not isinstance(indices, (list, tuple)):
        raise ConfigTypeError(
            "PD401", "select_ipus needs a list of devices", value=indices, accepted="[0], say"
        )
    if len(set(indices)) != len(indices):
        raise ConfigError("PD401", "select_ipus names a device twice", value=indices)
    opts.device_config = [{"cfg_index": index} for index in indices]
    return opts


def set_experimental_multi_replica_distribution_options(
    opts: IpuOptions, process_count: int, process_index: int
) -> IpuOptions:
    """Sets this process's place among the job's processes.

    Args:
        opts: The record.
        process_count: Processes of the job.
        process_index: This one's index.

    Returns:
        The record.

    Raises:
        ConfigError: The index is not one of the processes.
    """
    if not 0 <= process_index < process_count:
        raise ConfigError(
            "PD401",
            "process_index is not one of the job's processes",
            value=process_index,
            accepted=f"0 to {process_count - 1}, for process_count {process_count}",
        )
    opts.multi_replica_process_count = process_count
    opts.multi_replica_process_index = process_index
    return opts


def set_ipu_connection_type(
    opts: IpuOptions,
    connection_type: Any = None,
    ipu_version: Any = None,
    enable_remote_buffers: bool = False,
) -> IpuOptions:
    """Stores how devices would be attached; without effect on a host.

    Args:
        opts: The record.
        connection_type: When to attach.
        ipu_version: For which hardware to compile.
        enable_remote_buffers: Whether remote buffers are allowed.

    Returns:
        The record.
    """
    opts.settings["ipu_connection"] = (connection_type, ipu_version, enable_remote_buffers)
    return opts


def _refuse_second_selection(opts: IpuOptions) -> None:
    if opts.device_config:
        raise ConfigConflictError(
            "PD401",
            "devices are selected already",
            value=opts.device_config,
            accepted="one call of auto_select_ipus or select_ipus",
        )


# Options that concern an IPU alone.


def _keeps(name: str) -> Callable[..., IpuOptions]:
    def keep(opts: IpuOptions, *values: Any, **settings: Any) -> IpuOptions:
        opts.settings[name] = (values, settings)
        return opts

    keep.__name__ = keep.__qualname__ = name
    keep.__doc__ = f"Keeps what was given, without effect on a host, and returns ``opts`` ({name})."
    return keep


set_compilation_options = _keeps("set_compilation_options")
set_convolution_options = _keeps("set_convolution_options")
set_floating_point_behaviour_options = _keeps("set_floating_point_behaviour_options")
set_gcl_options = _keeps("set_gcl_options")
set_io_tile_options = _keeps("set_io_tile_options")
set_ipu_model_options = _keeps("set_ipu_model_options")
set_matmul_options = _keeps("set_matmul_options")
set_norm_options = _keeps("set_norm_options")
set_optimization_options = _keeps("set_optimization_options")
set_pooling_options = _keeps("set_pooling_options")
set_recomputation_options = _keeps("set_recomputation_options")
set_report_options = _keeps("set_report_options")
set_serialization_options = _keeps("set_serialization_options")
set_transfer_options = _keeps("set_transfer_options")
