"""Keeps the instances of a Keras training together from one step and epoch to the next.

The first step of a training compares weights (`popdist_tf.checks.first_steps`). What happens later
is up to callbacks: one that decides by numbers of its own instance may set another learning rate,
load weights, or end the training on that instance alone. So instances compare the number of steps
before the first epoch; after each epoch, whether they continue and what weights they hold; and
after each step, whether they continue, if a callback of the program runs between steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.checks.layers import compare_layers, note_adapted
from popdist_tf.checks.parts import counts_rows_alike, probe_parts
from popdist_tf.checks.rows import (
    compare_arrays,
    count_rows,
    counted_rows,
    rows_of_batch,
    sizes_of_fit,
    warn_of_sizes,
)
from popdist_tf.collectives.agreement import agree_on_weights, compared
from popdist_tf.errors import AgreementError
from popdist_tf.hooks import add_callbacks, before_batches, before_training
from popdist_tf.together.reductions import Reduction, optimizers_of
from popdist_tf.together.saving import (
    CheckpointsApart,
    SynchronizeState,
    keep_backups_apart,
    share_backups,
)
from popdist_tf.versions import keras_is_3, tensorflow_variable, variable_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from popdist.agreement import Disagreement
    from popdist_tf.collectives.host import HostCollectives
    from popdist_tf.together.uneven_data import AnnouncedSteps

_DECIDE_ALIKE = (
    "let callbacks decide by values that all instances have: metrics of the strategy, or under "
    "popdist_tf.keras a MetricAverageCallback before the callback; give validation data to all "
    "instances or to none"
)


def compare_epochs() -> None:
    """Makes every ``fit`` of a model that reduces over the instances compare; safe to call again.

    Models that reduce over no other instance are not compared.
    """
    probe_parts()
    add_callbacks("epochs", _callbacks)
    before_batches("epochs", _compare_call)
    before_training("rows", _count_rows)
    note_adapted()


def _compare_call(model: Any, batch: Any) -> None:
    collectives = Reduction(model).collectives
    if collectives is None:
        return
    found = compared(
        collectives,
        "train_on_batch of a model",
        {"rows": f"a batch of {rows_of_batch(batch)} rows"},
        "the same calls of fit and train_on_batch on every instance",
        "call train_on_batch as often on all instances, each with its own batch",
    )
    _warn_of_rows(collectives, model, found)


def _count_rows(model: Any) -> None:
    collectives = Reduction(model).collectives
    if collectives is not None and collectives.horovod is not None:
        count_rows(model)


def _warn_of_rows(collectives: HostCollectives, model: Any, found: Sequence[Disagreement]) -> None:
    if found and collectives.rank == 0 and counts_rows_alike(model):
        warn_of_sizes(found[0].says)


def _callbacks(model: Any, fit: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    reduction, given = Reduction(model), fit["callbacks"]
    collectives, wrapper = reduction.collectives, reduction.wrapper
    if hasattr(reduction.extended, "guard") and collectives is not None and not keras_is_3():
        share_backups(collectives, given)
    if not optimizers_of(model):
        return [], []
    asks = any(map(_acts_between_steps, given))
    if collectives is None:
        return [], _ends_of_workers(reduction.extended, asks=asks)
    if collectives.horovod is None:
        return [], []
    total = tf.function(
        lambda own: collectives.sum_by_name(own, "popdist_ends_in_epoch"), autograph=False
    )
    begin = _SameBegin(collectives, fit, None if wrapper is None else wrapper.steps)
    before: list[Any] = [begin]
    if wrapper is not None:
        before.append(SynchronizeState(collectives, given))
    if keras_is_3() and collectives.rank:
        keep_backups_apart(given, collectives.rank)
        if wrapper is None:
            before.append(CheckpointsApart(given))
    return before, [_SameEnd(collectives.size, total, asks=asks, begin=begin)]


def _ends_of_workers(extended: Any, *, asks: bool) -> list[Any]:
    """The comparison of `IPUMultiWorkerStrategy`, whose workers share no Horovod."""
    if getattr(extended, "size", 1) == 1 or not hasattr(extended, "sum_over_workers"):
        return []
    return [_SameEnd(extended.size, extended.sum_over_workers, asks=asks)]


class _SameBegin(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Compares what ``fit`` is given; where Keras does not know steps, ends epochs together.

    Args:
        collectives: The job's collectives.
        fit: The arguments of ``fit``.
        steps: What announces the steps of a wrapped optimizer; None under a strategy.
    """

    def __init__(
        self, collectives: HostCollectives, fit: Mapping[str, Any], steps: AnnouncedSteps | None
    ) -> None:
        super().__init__()
        self.collectives = collectives
        self._steps = steps
        self._data = [fit.get("x"), fit.get("y")]
        self._sizes = sizes_of_fit(fit)
        self._found: Sequence[Disagreement] = ()
        self._has_compared = False  # sizes that differ

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares, and makes an optimizer announce its steps where their number is unknown."""
        del logs
        number = self.params.get("steps")
        sizes = {"rows": self._sizes}
        self._found = compared(self.collectives, f"an epoch of {number} steps", sizes)
        self._has_compared = bool(self._found)
        compare_layers(self.collectives, self.model)
        compare_arrays(self.collectives, self._data)
        if self._steps is not None:
            self._steps.want(number is None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tells the instances that still train that this one has no more data.

        It also warns of sizes that differ, now that it is known whether they matter to a step.
        """
        del epoch, logs
        if self._steps is not None:
            self._steps.end_of_epoch()
        found, self._found = self._found, ()
        _warn_of_rows(self.collectives, self.model, found)

    def warn_of_counts(self, found: Sequence[Disagreement]) -> None:
        """Warns of an epoch with other numbers of rows, unless sizes have differed before."""
        if not self._has_compared:
            self._has_compared = bool(found)
            _warn_of_rows(self.collectives, self.model, found)


# Ends of a training in the middle of an epoch.
#
# An instance that leaves an epoch would wait for the others in the next exchange, which is another
# one than theirs. So whether all leave has to be asked before one of them does.


_BETWEEN_STEPS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def _acts_between_steps(callback: Any) -> bool:
    """Whether a callback has code between steps that may end the training there."""
    if any(name in vars(callback) for name in _BETWEEN_STEPS):  # as of a LambdaCallback
        return True
    return any(map(_may_end, {_owner(callback, name) for name in _BETWEEN_STEPS}))


def _owner(callback: Any, method: str) -> Any:
    return next((one for one in type(callback).__mro__ if method in vars(one)), None)


def _may_end(owner: Any) -> bool:
    # Of Keras' own callbacks, only one ends a training between steps.
    is_known = owner is None or owner.__module__.split(".")[0] in {"horovod", "keras", "popdist_tf"}
    return not is_known or owner.__name__ == "TerminateOnNaN"


class _SameEnd(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Stops a training that some instances end, and others continue or hold other weights of.

    Args:
        size: Instances.
        total: Sums an integer over them.
        asks: Whether to ask all instances after each step; otherwise one that ends its training in
            the middle of an epoch fails alone.
        begin: What has compared as ``fit`` began, over Horovod; None for other workers, which
            compare nothing else after an epoch.
    """

    _supports_tf_logs = True  # else Keras copies the loss to the host in every step

    def __init__(
        self,
        size: int,
        total: Callable[[Any], Any],
        *,
        asks: bool,
        begin: _SameBegin | None = None,
    ) -> None:
        super().__init__()
        self._size = size
        self._total = total
        self._asks = asks
        self._begin = begin
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets rows of earlier calls."""
        del logs
        if self._begin is not None:
            counted_rows(self.model).take(self._begin.collectives.rank)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch's number."""
        del logs
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Compares after a step.

        Raises:
            AgreementError: Some instances end the training here.
        """
        del logs
        step = f"step {batch + 1} of epoch {self._epoch}"
        if self._asks:
            self._compare(step)
        elif self.model.stop_training and batch + 1 != self.params.get("steps"):
            raise AgreementError(
                "PD007",
                "this instance ends the training in the middle of an epoch, without the others",
                value=f"stop_training was set before the end of {step}, by no callback",
                accepted="stop_training of all instances, after the same step",
                hint="set model.stop_training in on_train_batch_end of a callback that is given to "
                "fit, where the instances compare it, or in on_epoch_end",
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compares after an epoch.

        Raises:
            AgreementError: An instance ends the training, or holds other weights.
        """
        del logs
        if self._begin is None:
            self._compare(f"epoch {epoch}")
            return
        collectives = self._begin.collectives
        ends = "ends the training" if self.model.stop_training else "continues"
        found = compared(
            collectives,
            f"epoch {epoch}, after which it {ends}",
            counted_rows(self.model).take(collectives.rank),
            accepted="the same epochs on every instance",
            hint=_DECIDE_ALIKE,
        )
        self._begin.warn_of_counts(found)
        self._compare_weights(collectives, f"after epoch {epoch}")

    def on_train_end(self, logs: Any = None) -> None:
        """Compares again: callbacks may have loaded the weights of another epoch.

        Raises:
            AgreementError: An instance holds other weights.
        """
        del logs
        if self._begin is not None:
            self._compare_weights(self._begin.collectives, "at the end of the training")

    def _compare(self, when: str) -> None:
        own = int(bool(self.model.stop_training))
        ends = int(self._total(tf.constant(own)))
        if 0 < ends < self._size:
            raise AgreementError(
                "PD007",
                "some instances end the training, and the others would wait for them forever",
                value=f"{ends} of {self._size} instances end it after {when}; this one "
                + ("ends" if own else "continues"),
                accepted="stop_training of all instances, after the same step",
                hint=_DECIDE_ALIKE,
            )

    def _compare_weights(self, collectives: HostCollectives, when: str) -> None:
        weights = [
            (variable_name(one), tensorflow_variable(one).numpy())
            for one in self.model.trainable_weights
        ]
        agree_on_weights(collectives, weights, when)
