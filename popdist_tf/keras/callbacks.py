"""Callbacks for Keras programs whose instances each hold their own model.

They broadcast the first state, compare weights, and average metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.collectives.agreement import agree, agree_on_weights
from popdist_tf.collectives.instances import job_collectives
from popdist_tf.versions import describe, tensorflow_variable, variable_name

if TYPE_CHECKING:
    from collections.abc import Iterable


# Broadcast and comparison of variables.


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Assigns the root's values to the same variables on every instance.

    Raises:
        AgreementError: The instances pass different variables.
    """
    collectives = job_collectives()
    held = list(variables)
    if collectives.horovod is None or not held:
        return
    agree(collectives, f"{len(held)} variables to broadcast: {describe(held)}")

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def assign_all() -> None:
        for variable in map(tensorflow_variable, held):
            variable.assign(collectives.broadcast(variable, root_rank))

    assign_all()


def check_weights(variables: Iterable[Any], when: str = "here") -> None:
    """Checks that all instances hold bit-identical weights; every instance must call it.

    For loops that update weights by themselves: optimizers of `DistributedOptimizer`, and any
    optimizer under the strategies, are checked after their first step in any case.

    Args:
        variables: Variables of Keras or of TensorFlow, the same ones on every instance; in a graph
            of TensorFlow 1, pairs of a name and the value that a session returned.
        when: At which point, in words, for the message.

    Raises:
        AgreementError: Weights differ; raised on all instances, and names those that do.
    """
    held = [
        one if isinstance(one, tuple) else (variable_name(one), tensorflow_variable(one).numpy())
        for one in variables
    ]
    agree_on_weights(job_collectives(), held, when)


def broadcast_training_state(model: Any, root_rank: int) -> None:
    """Broadcasts the weights and the optimizer state of a model that is built and compiled."""
    optimizer = model.optimizer
    # An instance that has resumed from a file has slots already; the others need them to receive.
    optimizer.build(list(model.trainable_variables))
    broadcast_variables([*model.weights, *optimizer.variables], root_rank)


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Starts the training on all instances from the weights and slots of one of them.

    The broadcast runs before the first step if the model is built by then (it has an input shape),
    else after it. After the following step, the instances compare their weights. So any optimizer
    that does not reduce gradients (such as Horovod's own, with Keras 3) is detected.

    Args:
        root_rank: The instance whose values count.
        device: Accepted as Horovod has it; variables stay where they are.
    """

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()
        del device
        self._root_rank = root_rank
        self._is_done = self._is_compared = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares the number of steps, and broadcasts."""
        del logs
        agree(job_collectives(), f"an epoch of {self.params.get('steps')} steps")
        self._is_done = self._is_compared = False
        if self.model.built and self.model.weights:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts the state that the first step created; compares the weights one step later.

        Raises:
            AgreementError: The weights differ; raised on all instances.
        """
        del batch, logs
        if not self._is_done:
            self._broadcast()
        elif not self._is_compared:
            self._is_compared = True
            check_weights(self.model.trainable_weights, "after the first step")

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
