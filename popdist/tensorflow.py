"""The module for TensorFlow programs: ``popdist.tensorflow.set_ipu_config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from popdist.popdist_core import (
    checkNumIpusPerReplica,
    getDeviceId,
    getNumIpusPerReplica,
    isPopdistEnvSet,
)

if TYPE_CHECKING:
    from popdist_tf.config.ipu_config import IPUConfig
    from popdist_tf.config.legacy import IpuOptions

    Config = TypeVar("Config", IPUConfig, IpuOptions)

__all__ = ["set_ipu_config"]


def set_ipu_config(
    config: Config, ipus_per_replica: int | None = None, configure_device: bool = True
) -> Config:
    """Writes this instance's place in the job, and its device, into a configuration.

    Args:
        config: An `IPUConfig`, or the options of SDK 2.2 and before; changed in place.
        ipus_per_replica: Devices that one replica uses; checked against the launcher's.
        configure_device: Whether the device that the launcher chose is selected. Without it, the
            program selects devices itself (see `popdist.getDeviceId`).

    Returns:
        ``config``.

    Raises:
        ConfigTypeError: ``config`` or ``ipus_per_replica`` is something else.
        ConfigConflictError: The launcher placed the job for another number of devices per replica,
            or other devices are selected already.
    """
    from numbers import Integral

    from popdist_tf.collectives.instances import place_in_job
    from popdist_tf.config import legacy
    from popdist_tf.config.ipu_config import IPUConfig
    from popdist_tf.errors import ConfigConflictError, ConfigTypeError

    if not isinstance(config, (IPUConfig, legacy.IpuOptions)):
        raise ConfigTypeError(
            "PD401",
            "set_ipu_config was given something that is not a configuration",
            value=config,
            accepted="an IPUConfig",
        )
    if ipus_per_replica is not None and (
        not isinstance(ipus_per_replica, Integral) or ipus_per_replica < 1
    ):
        raise ConfigTypeError(
            "PD401",
            "ipus_per_replica of set_ipu_config is a positive whole number",
            value=ipus_per_replica,
            accepted="None, or 1 or more",
        )
    placed = isPopdistEnvSet()
    if ipus_per_replica and placed and not checkNumIpusPerReplica(ipus_per_replica):
        raise ConfigConflictError(
            "PD401",
            "the job was placed for another number of devices per replica",
            value=ipus_per_replica,
            accepted=f"{getNumIpusPerReplica()}",
            hint=f"start the job with poprun --ipus-per-replica {ipus_per_replica}",
        )
    count, index = place_in_job()
    if isinstance(config, IPUConfig):
        config.experimental.multi_replica_distribution.process_count = count
        config.experimental.multi_replica_distribution.process_index = index
        if configure_device:
            config.select_ipus = [getDeviceId(ipus_per_replica)]
    else:
        legacy.set_experimental_multi_replica_distribution_options(config, count, index)
        if configure_device:
            legacy.select_ipus(config, [getDeviceId(ipus_per_replica)])
    return config
