"""Random seeds, and small questions of the published ``ipu.utils``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> Any:
    """Starts random numbers from a seed.

    Args:
        seed: The seed of everything random that is built or called from now on.
        device: Accepted as published.
        cpu_device: Accepted as published.
        experimental_identical_replicas: Accepted as published.

    Returns:
        An operation without effect, in graph mode, where programs run it; None otherwise.
    """
    del device, cpu_device, experimental_identical_replicas
    tf.random.set_seed(seed)
    return None if tf.executing_eagerly() else tf.no_op()


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Leaves variables where they are initialised, which is the host already.

    Args:
        graph: Accepted as published.
    """
    del graph


def running_on_ipu_model() -> bool:
    """Whether an emulated IPU is used: never, on a host."""
    return False
