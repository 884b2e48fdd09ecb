"""Callbacks of Keras that change the learning rate, as Horovod's callbacks of the same names do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.collectives.instances import job_collectives
from popdist_tf.errors import OptimizerError

if TYPE_CHECKING:
    from collections.abc import Callable


class LearningRateScheduleCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies the learning rate in some epochs, as Horovod's callback of this name does.

    Args:
        initial_lr: What is multiplied, usually the learning rate for all ranks.
        multiplier: A number, or a function of the epoch (with fractions without ``staircase``).
        start_epoch: The first epoch in which the rate changes.
        end_epoch: The epoch from which on it does not; None for all.
        staircase: Whether the rate changes once in an epoch, and not in each batch.
        momentum_correction: Whether the momentum of a batch follows a change of the rate, where
            the optimizer has it as a variable.
        steps_per_epoch: Batches of an epoch; None where Keras knows them.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Callable[[float], float] | float,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._rate = initial_lr
        self._epochs = (start_epoch, end_epoch)
        # A constant changes nothing between two batches.
        self._staircase = staircase or not callable(multiplier)
        self._multiplier = multiplier if callable(multiplier) else lambda _: multiplier
        self._corrects = momentum_correction
        self._steps = steps_per_epoch
        self._epoch = 0
        self._momentum: Any = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        del logs
        self._epoch = epoch
        self._steps = self._steps or self.params.get("steps")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate.

        Raises:
            OptimizerError: The number of steps is not known.
        """
        del logs
        first, last = self._epochs
        if self._epoch < first or (last is not None and self._epoch >= last):
            return
        if self._staircase and batch == 0:
            self._set(self._multiplier(self._epoch))
        elif not self._staircase:
            self._set(self._multiplier(self._epoch + batch / self._known_steps()))

    def _known_steps(self) -> int:
        if not self._steps:
            raise OptimizerError(
                "PD435",
                f"{type(self).__name__} needs the number of batches of an epoch",
                hint="steps_per_epoch=...",
            )
        return self._steps

    def _set(self, factor: float) -> None:
        optimizer = self.model.optimizer
        before = float(optimizer.learning_rate)
        rate = optimizer.learning_rate = self._rate * factor
        momentum = getattr(optimizer, "momentum", None)
        if self._corrects and isinstance(momentum, tf.Variable) and before:
            self._momentum = momentum.numpy()
            momentum.assign(self._momentum * rate / before)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sets the momentum back."""
        del batch, logs
        if self._momentum is not None:
            self.model.optimizer.momentum.assign(self._momentum)
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the learning rate to the logs."""
        del epoch
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate in the first epochs from that of one rank to that of all.

    Args:
        initial_lr: The learning rate for all ranks, which the warm-up ends with.
        warmup_epochs: Epochs of the warm-up.
        momentum_correction: As for `LearningRateScheduleCallback`.
        steps_per_epoch: As for `LearningRateScheduleCallback`.
        verbose: Whether rank 0 prints the rate that the warm-up has ended with.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            ranks = job_collectives().size
            epoch += 1 / self._known_steps()
            return min(1.0, (epoch * (ranks - 1) / warmup_epochs + 1) / ranks)

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=math.ceil(warmup_epochs),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._says = verbose > 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the learning rate to the logs, and prints it after the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self._says and epoch + 1 == self._epochs[1] and job_collectives().rank == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: the warm-up ended at a learning rate of {rate:g}.")  # noqa: T201
