"""Callbacks for Keras programs whose instances each hold their own model.

They broadcast the first state, compare weights, and make metrics those of all instances. Those that
change the learning rate stand in `popdist_tf.keras.learning_rates`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf

from popdist_tf.collectives.agreement import agree, agree_on_weights
from popdist_tf.collectives.instances import job_collectives
from popdist_tf.keras.learning_rates import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from popdist_tf.together.reductions import optimizers_of
from popdist_tf.versions import (
    build_optimizer,
    describe,
    optimizer_variables,
    tensorflow_variable,
    variable_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


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
    build_optimizer(optimizer, model.trainable_variables)
    kinds = (optimizer, *optimizers_of(model))
    held = {id(one): one for kind in kinds for one in optimizer_variables(kind)}
    broadcast_variables([*model.weights, *held.values()], root_rank)


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
    """Makes the metrics of an epoch those of all instances.

    Keras' own metrics (AUC, precision, F1 score, means) are computed from the rows of all
    instances, as in one process; other values are averaged. Put it before callbacks that decide by
    metrics (early stopping, learning rates, checkpoints), so that all instances decide alike.

    Args:
        device: Accepted as Horovod has it.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device
        self._training: list[Any] | None = None  # states of metrics, where validation resets them

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forgets the epoch before."""
        del epoch, logs
        self._training = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Keeps the states of the training's metrics, before the validation resets them."""
        del logs
        self._training = [one.numpy() for one in _states(self.model)]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces each metric by that of all instances."""
        names = sorted(name for name in logs or {} if name != "learning_rate")
        collectives = job_collectives()
        if not logs or collectives.horovod is None:
            return
        own = {name: np.asarray(logs[name], np.float64) for name in names}
        texts = [f"{name}{list(one.shape) if one.shape else ''}" for name, one in own.items()]
        before = "" if self._training is None else " after a validation"
        counts = sum(int(np.prod(one.shape)) for one in _states(self.model))
        kept = f" (of {counts} numbers{before})" if counts else ""
        agree(collectives, f"metrics of epoch {epoch}: {', '.join(texts)}{kept}")

        def sums(values: Sequence[Any]) -> list[Any]:
            flat = np.concatenate([np.ravel(one).astype(np.float64) for one in values])
            total = collectives.allreduce(tf.constant(flat)).numpy()
            ends = np.cumsum([np.size(one) for one in values])[:-1]
            parts = np.split(total, ends)
            return [part.reshape(np.shape(one)) for part, one in zip(parts, values, strict=True)]

        found = _of_all_rows(self.model, "val_" if before else "", own, sums)
        if self._training is not None:
            with _holding(self.model, self._training):
                found |= _of_all_rows(self.model, "", own, sums)
        everywhere = sums([name in found for name in names])
        values = [
            found[name] if known_to == collectives.size else own[name]
            for name, known_to in zip(names, everywhere, strict=True)
        ]
        for name, total in zip(names, sums(values), strict=True):
            logs[name] = (
                total / collectives.size if total.shape else float(total) / collectives.size
            )


# States of metrics. The result of a metric of Keras is a function of sums over rows, which are its
# variables, as Keras itself adds them under a strategy. The class of a program may keep others.


def _of_all_rows(
    model: Any, prefix: str, logged: Mapping[str, Any], sums: Callable[[Sequence[Any]], list[Any]]
) -> dict[str, Any]:
    """Results of a model's metrics over the rows of all instances, by their names in the logs.

    A ``train_step`` of the program may log values under the same names that are no results.
    """
    held = _states(model)
    if not held:
        return {}
    own = _results(model)
    totals = sums([one.numpy() for one in held])
    with _holding(model, totals):
        of_all = _results(model)
    return {
        prefix + name: of_all[name]
        for name, value in own.items()
        if (now := logged.get(prefix + name)) is not None
        and now.shape == value.shape
        and np.allclose(now, value, rtol=1e-5, atol=1e-7, equal_nan=True)
    }


def _states(model: Any) -> list[Any]:
    """The variables of the model's metrics whose results Keras' own classes compute."""
    waiting, found = list(model.metrics), []
    while waiting:
        metric = waiting.pop(0)
        inner = getattr(metric, "metrics", None)  # of Keras 3, which has one metric around all
        if inner:
            waiting += inner
        elif type(metric).result.__module__.partition(".")[0] == "keras":
            found += [tensorflow_variable(one) for one in metric.variables]
    return [one for one in found if one.dtype.is_floating or one.dtype.is_integer]


def _results(model: Any) -> dict[str, Any]:
    found = model.get_metrics_result()
    return {name: np.asarray(value, np.float64) for name, value in found.items()}


@contextmanager
def _holding(model: Any, states: Sequence[Any]) -> Iterator[None]:
    """Gives the model's metrics other states for a while."""
    held = _states(model)
    own = [one.numpy() for one in held]
    try:
        for variable, state in zip(held, states, strict=True):
            variable.assign(tf.cast(state, variable.dtype))
        yield
    finally:
        for variable, state in zip(held, own, strict=True):
            variable.assign(state)
