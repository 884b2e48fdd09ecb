"""One TensorFlow device for each replica of this instance."""

from __future__ import annotations

import warnings

import tensorflow.compat.v2 as tf
from tensorflow.python.eager import context

import popdist
from popdist_tf.errors import TooLateError

_SELECTED = "_popdist_selected"  # kept where TensorFlow keeps its devices


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


def warn_of_idle_replicas(strategy: str) -> None:
    """Warns where a strategy runs one replica in each process, and a process is to run several.

    Args:
        strategy: The name of its class.
    """
    replicas = popdist.topology().num_local_replicas
    if replicas > 1:
        total = popdist.topology().num_total_replicas
        warnings.warn(
            f"[PD429] {strategy} runs one replica in each process, and this one was started for "
            f"{replicas}: an update takes the data of {total // replicas} replicas, and not of "
            f"{total}. Use PopDistStrategy, or start the job with poprun --num-instances {total}.",
            stacklevel=3,
        )


def note_selected(count: int) -> None:
    """Remembers how many devices a program has selected by their number."""
    setattr(context.context(), _SELECTED, count)


def warn_of_missing_replicas() -> None:
    """Warns where the original would have made more replicas than this process runs.

    A model that needs one of several selected devices is replicated on all of them there.
    """
    replicas = popdist.topology().num_local_replicas
    needed = replicas * popdist.getNumIpusPerReplica()
    selected = getattr(context.context(), _SELECTED, 1)
    if selected > needed:
        wanted = replicas * selected // needed
        warnings.warn(
            f"[PD419] auto_select_ipus={selected} asks for {wanted} replicas, and this process has "
            f"{replicas}: the launcher decides here how many there are, and an update takes the "
            f"data of these alone. Start with poprun --num-replicas {wanted}, and train under a "
            f"PopDistStrategy; or configure auto_select_ipus={needed}.",
            stacklevel=1,
        )
