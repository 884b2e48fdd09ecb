"""`IPUConfig`, its checks, and `configure_ipu_system`, which selects this host's devices."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

import popdist
from popdist_tf.collectives.instances import place_in_job
from popdist_tf.config.legacy import IpuOptions
from popdist_tf.config.nested import Category
from popdist_tf.config.tables import ATTRIBUTES
from popdist_tf.errors import ConfigConflictError, ConfigError, ConfigTypeError, TooLateError
from popdist_tf.strategies.devices import note_selected, replica_devices


class IPUConfig(Category):
    """The configuration of the system.

    Attributes are set by assignment, nested ones through their categories, as in
    ``config.matmuls.clear_pass_type = True``. Attributes that concern an IPU alone are stored
    without effect on a host; `docs/compatibility.md` says which have an effect.
    """

    def __init__(self) -> None:
        super().__init__(ATTRIBUTES, "IPUConfig")

    def num_automatic(self) -> int:
        """How many devices the first system of the program has, where their number selects them.

        Returns:
            The count; 1 where devices are selected by id, or not at all.
        """
        count = self.auto_select_ipus
        return count if isinstance(count, int) else next(iter(count), 1)

    def num_devices(self) -> int:
        """How many devices the configuration selects, for all replicas of this process.

        Returns:
            The count; 1 where the configuration selects none.
        """
        if isinstance(self.auto_select_ipus, int):
            return self.auto_select_ipus
        if self.auto_select_ipus:
            return sum(self.auto_select_ipus)
        return 1 if isinstance(self.select_ipus, int) else max(1, len(self.select_ipus))

    def check(self) -> None:
        """Checks attributes against each other, as the original does when it converts them.

        Raises:
            ConfigConflictError: Both selectors are set.
            ConfigError: Devices are selected twice, or the process index is not one of the count.
        """
        selected = self.select_ipus
        if selected not in ([], ()) and self.auto_select_ipus not in ([], ()):
            raise ConfigConflictError(
                "PD401",
                "both auto_select_ipus and select_ipus are set",
                value=f"auto_select_ipus={self.auto_select_ipus!r} select_ipus={selected!r}",
                accepted="one of the two",
            )
        if not isinstance(selected, int) and len(set(selected)) != len(selected):
            raise ConfigError("PD401", "select_ipus names a device twice", value=selected)
        distribution = self.experimental.multi_replica_distribution
        count, index = distribution.process_count, distribution.process_index
        if count and not 0 <= index < count:
            raise ConfigError(
                "PD401",
                "process_index is not one of the job's processes",
                value=index,
                accepted=f"0 to {count - 1}, for process_count {count}",
            )

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Makes TensorFlow use the devices that the configuration selects.

        Args:
            device: Accepted as published.

        Raises:
            ConfigConflictError: The attributes contradict each other.
            TooLateError: TensorFlow has started with other devices.
        """
        configure_ipu_system(self, device)


# Selection of this host's devices, before TensorFlow starts.


def configure_ipu_system(
    config: Any, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Makes TensorFlow use the devices that a configuration selects.

    On a machine with GPUs, each instance uses the GPUs of its place on the host, and their memory
    use grows as needed. Otherwise the instance's replicas share the CPU.

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
            "configure_ipu_system was given something that is not a configuration",
            value=config,
            accepted="an IPUConfig",
        )
    config.check()
    if isinstance(config, IPUConfig):
        _check_against_job(config)
    _take_gpus()
    note_selected(config.num_automatic())
    replica_devices(popdist.topology().num_local_replicas)


def reset_ipu_configuration() -> None:
    """Does nothing on a host, where the selected devices do not change."""


def _check_against_job(config: IPUConfig) -> None:
    distribution = config.experimental.multi_replica_distribution
    here = place_in_job()
    if distribution.process_count and (popdist.isPopdistEnvSet() or here[0] > 1):
        seen = (distribution.process_count, distribution.process_index)
        if seen != here:
            raise ConfigConflictError(
                "PD401",
                "the configuration describes another process than this one",
                value=f"process {seen[1]} of {seen[0]}",
                accepted=f"process {here[1]} of {here[0]}, as it was started",
                hint="popdist.tensorflow.set_ipu_config(config) sets both",
            )


def _take_gpus() -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    count = popdist.topology().num_local_replicas * popdist.getNumIpusPerReplica()
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
