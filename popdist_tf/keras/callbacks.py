"""Callbacks for Keras programs whose instances each hold a model of their own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from popdist_tf.collectives.agreement import agree
from popdist_tf.collectives.instances import job_collectives
from popdist_tf.keras.broadcasting import broadcast_training_state


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Starts the training on all instances from the weights and slots of one of them.

    Before the first step where the model is built by then (it has an input shape), else after it.

    Args:
        root_rank: The instance whose values count.
        device: Accepted as Horovod has it; variables stay where they are.
    """

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()
        del device
        self._root_rank = root_rank
        self._is_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares the number of steps, and broadcasts."""
        del logs
        agree(job_collectives(), f"an epoch of {self.params.get('steps')} steps")
        self._is_done = False
        if self.model.built and self.model.weights:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts what the first step has created."""
        del batch, logs
        if not self._is_done:
            self._broadcast()

    def _broadcast(self) -> None:
        broadcast_training_state(self.model, self._root_rank)
        self._is_done = True


class MetricAverageCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over the instances.

    Put it before callbacks that decide by metrics (early stopping, learning rates, checkpoints), so
    that all instances decide alike.

    Args:
        device: Accepted as Horovod has it.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces each metric by its average."""
        names = sorted(name for name in logs or {} if name != "learning_rate")
        collectives = job_collectives()
        if not logs or collectives.horovod is None:
            return
        agree(collectives, f"metrics of epoch {epoch}: {', '.join(names)}")
        own = tf.constant([float(logs[name]) for name in names], tf.float64)
        averages = (collectives.allreduce(own) / collectives.size).numpy()
        logs.update(zip(names, map(float, averages), strict=True))
