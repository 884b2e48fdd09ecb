"""One TensorFlow device for each replica of this instance."""

from __future__ import annotations

import tensorflow as tf

from popdist_tf.errors import TooLateError


def replica_devices(count: int) -> tuple[str, ...]:
    """The names of the compute devices of this instance's replicas, one for each.

    The devices are GPUs where this process sees enough of them. Otherwise they are the CPU, split
    into logical devices for several replicas, which must happen before TensorFlow starts.

    Raises:
        TooLateError: TensorFlow has started with fewer logical devices.
    """
    if len(tf.config.list_physical_devices("GPU")) >= count:
        return tuple(f"/device:GPU:{index}" for index in range(count))
    if count > 1:
        _cut_cpu(count)
    return tuple(f"/device:CPU:{index}" for index in range(count))


def _cut_cpu(count: int) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    configured = tf.config.get_logical_device_configuration(cpu) or []
    if len(configured) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        )
    except RuntimeError:
        raise TooLateError(
            "PD402",
            f"this instance has {count} replicas, and TensorFlow has started with fewer devices",
            value=f"{max(1, len(configured))} logical CPU device(s)",
            accepted=f"{count}, one for each replica",
            hint="create the strategy (or call set_ipu_config and configure_ipu_system) before "
            "the first tensor, variable or dataset",
        ) from None
