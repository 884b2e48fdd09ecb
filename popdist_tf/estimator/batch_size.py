"""The batch size of one replica, from the global one."""

from __future__ import annotations

from popdist_tf.errors import EstimatorValueError


def local_batch_size(name: str, global_size: int, workers: int, replicas: int) -> int:
    """Divides a global batch over all replicas of all workers.

    Args:
        name: The argument that it came from, such as ``train_batch_size``.
        global_size: Samples of one update, or of one evaluation step.
        workers: Workers that take part.
        replicas: Replicas of each worker.

    Returns:
        Samples of one replica.

    Raises:
        EstimatorValueError: The batch cannot be divided equally.
    """
    parts = workers * replicas
    if global_size < parts or global_size % parts:
        raise EstimatorValueError(
            "PD421",
            f"{name} cannot be divided over the replicas",
            value=global_size,
            accepted=f"a multiple of {parts} ({workers} workers with {replicas} replicas each)",
        )
    return global_size // parts
