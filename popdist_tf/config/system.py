"""Mapping the selected devices to this host's, before TensorFlow starts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import popdist
from popdist_tf.config.ipu_config import IPUConfig
from popdist_tf.config.legacy import IpuOptions
from popdist_tf.devices.local import replica_devices
from popdist_tf.errors import ConfigConflictError, ConfigTypeError, TooLateError


def configure_ipu_system(
    config: Any, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Makes TensorFlow use the devices that a configuration selects.

    On a machine with GPUs, each instance takes those of its place on the host, with memory that
    grows as needed; else its replicas share the CPU.

    Args:
        config: An `IPUConfig`, or the options of SDK 2.2 and before.
        device: Accepted as published.
        reset_configuration: Accepted as published: a later call replaces an earlier one while
            TensorFlow has not started.

    Raises:
        ConfigTypeError: ``config`` is neither.
        ConfigConflictError: The configuration contradicts itself or the job.
        TooLateError: TensorFlow has started with other devices.
    """
    del device, reset_configuration
    if not isinstance(config, (IPUConfig, IpuOptions)):
        raise ConfigTypeError(
            "PD401",
            "configure_ipu_system was given something that is no configuration",
            value=config,
            accepted="an IPUConfig",
        )
    config.check()
    if isinstance(config, IPUConfig):
        _check_against_job(config)
    _take_gpus()
    replica_devices(popdist.getNumLocalReplicas())


def reset_ipu_configuration() -> None:
    """Forgets the configuration; without effect on a host, where devices stay as they are."""


def _check_against_job(config: IPUConfig) -> None:
    distribution = config.experimental.multi_replica_distribution
    if distribution.process_count and popdist.isPopdistEnvSet():
        seen = (distribution.process_count, distribution.process_index)
        here = (popdist.getNumInstances(), popdist.getInstanceIndex())
        if seen != here:
            raise ConfigConflictError(
                "PD401",
                "the configuration describes another process than this one",
                value=f"process {seen[1]} of {seen[0]}",
                accepted=f"process {here[1]} of {here[0]}, as poprun started it",
                hint="popdist.tensorflow.set_ipu_config(config) sets both",
            )


def _take_gpus() -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    count = popdist.getNumLocalReplicas() * popdist.getNumIpusPerReplica()
    first = popdist.getDeviceId(popdist.getNumIpusPerReplica()) if popdist.isPopdistEnvSet() else 0
    own = gpus[first : first + count] if len(gpus) > count else gpus
    try:
        tf.config.set_visible_devices(own, "GPU")
        for gpu in own:
            tf.config.experimental.set_memory_growth(gpu, enable=True)
    except RuntimeError:
        raise TooLateError(
            "PD402",
            "the GPUs of this instance were to be selected, and TensorFlow has started already",
            hint="configure the system before the first tensor, variable or dataset",
        ) from None
