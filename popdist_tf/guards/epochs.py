"""Keeps the instances of a Keras training together from one epoch to the next.

The first step of a training compares weights (`popdist_tf.guards.divergence`). What happens later
is up to callbacks: one that decides by numbers of its own instance may set another learning rate,
load weights, or end the training on that instance alone. So instances compare the number of steps
before the first epoch; and after each epoch, whether they continue and what weights they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.collectives.agreement import agree, agree_on_weights
from popdist_tf.versions import add_callbacks, strategy_of, tensorflow_variable, variable_name

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives
    from popdist_tf.guards.uneven_data import AnnouncedSteps

REDUCTION = "_popdist_reduction"
"""An attribute of optimizers that `popdist_tf.keras` has wrapped; it has the job's collectives."""


def compare_epochs() -> None:
    """Makes every ``fit`` of a model that reduces over the instances compare; safe to call again.

    Models that reduce over no other instance are not compared.
    """
    add_callbacks("epochs", _callbacks)


def _callbacks(model: Any) -> tuple[list[Any], list[Any]]:
    optimizer = getattr(model, "optimizer", None)
    reduction = getattr(optimizer, REDUCTION, None)
    extended = getattr(strategy_of(model), "extended", None)
    held = reduction or extended
    collectives: HostCollectives | None = getattr(held, "collectives", None)
    if optimizer is None or collectives is None or collectives.horovod is None:
        return [], []
    steps = None if reduction is None else reduction.steps
    return [_SameSteps(collectives, steps)], [_SameAfterEpoch(collectives)]


class _SameSteps(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Compares the number of steps; where Keras does not know it, ends epochs together."""

    def __init__(self, collectives: HostCollectives, steps: AnnouncedSteps | None) -> None:
        super().__init__()
        self._collectives = collectives
        self._steps = steps

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares, and makes an optimizer announce its steps where their number is unknown."""
        del logs
        number = self.params.get("steps")
        agree(self._collectives, f"an epoch of {number} steps")
        if self._steps is not None:
            self._steps.want(number is None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tells the instances that still train that this one has no more data."""
        del epoch, logs
        if self._steps is not None:
            self._steps.end_of_epoch()


class _SameAfterEpoch(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Compares the weights of the instances after an epoch, and whether they continue."""

    def __init__(self, collectives: HostCollectives) -> None:
        super().__init__()
        self._collectives = collectives

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compares.

        Raises:
            AgreementError: An instance ends the training, or holds other weights.
        """
        del logs
        ends = "ends the training" if self.model.stop_training else "continues"
        agree(
            self._collectives,
            f"epoch {epoch}, after which it {ends}",
            accepted="the same epochs on every instance",
            hint="let callbacks decide by values that all instances have: metrics of the strategy, "
            "or under popdist_tf.keras a MetricAverageCallback before the callback; give "
            "validation data to all instances or to none",
        )
        weights = [
            (variable_name(one), tensorflow_variable(one).numpy())
            for one in self.model.trainable_weights
        ]
        agree_on_weights(self._collectives, weights, f"after epoch {epoch}")
