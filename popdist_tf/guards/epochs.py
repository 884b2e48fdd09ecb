"""Keeps the instances of a Keras training together from one step and epoch to the next.

The first step of a training compares weights (`popdist_tf.guards.divergence`). What happens later
is up to callbacks: one that decides by numbers of its own instance may set another learning rate,
load weights, or end the training on that instance alone. So instances compare the number of steps
before the first epoch; after each epoch, whether they continue and what weights they hold; and
after each step, whether they continue, if a callback of the program runs between steps.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.checks.parts import counts_rows_alike, probe_parts
from popdist_tf.collectives.agreement import agree, agree_on_weights, compared, text_of_root
from popdist_tf.errors import AgreementError
from popdist_tf.guards.adapted import compare_layers, note_adapted
from popdist_tf.guards.equal_data import compare_arrays
from popdist_tf.guards.means import SameSizes, warn_of_sizes
from popdist_tf.guards.optimizers import optimizers_of, reduction_of
from popdist_tf.guards.rows import count_rows, counted_rows, rows_of_batch
from popdist_tf.guards.untrained_state import SynchronizeState
from popdist_tf.hooks import add_callbacks, before_batches, before_training
from popdist_tf.versions import (
    keras_is_3,
    strategy_of,
    tensorflow_variable,
    variable_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from popdist.agreement import Disagreement
    from popdist_tf.collectives.host import HostCollectives
    from popdist_tf.guards.uneven_data import AnnouncedSteps

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
    collectives = _collectives_of(model)
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


def _collectives_of(model: Any) -> HostCollectives | None:
    held = reduction_of(model) or getattr(strategy_of(model), "extended", None)
    return getattr(held, "collectives", None)


def _count_rows(model: Any) -> None:
    collectives = _collectives_of(model)
    if collectives is not None and collectives.horovod is not None:
        count_rows(model)


def _warn_of_rows(collectives: HostCollectives, model: Any, found: Sequence[Disagreement]) -> None:
    if found and collectives.rank == 0 and counts_rows_alike(model):
        warn_of_sizes(found[0].says)


def _share_backups(collectives: HostCollectives | None, callbacks: Sequence[Any]) -> None:
    """Lets all instances resume from the first one's backup, which alone is written (Keras 2)."""
    if collectives is None or keras_is_3():
        return
    for one in callbacks:
        if isinstance(one, tf.keras.callbacks.BackupAndRestore):
            agree(collectives, "a training with BackupAndRestore")
            one.backup_dir = text_of_root(collectives, one.backup_dir)


def _callbacks(model: Any, fit: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    reduction = reduction_of(model)
    strategy = strategy_of(model)
    extended = getattr(strategy, "extended", None)
    if hasattr(extended, "guard"):
        _share_backups(_collectives_of(model), fit["callbacks"])
    held = reduction or extended
    asks = any(map(_acts_between_steps, fit["callbacks"]))
    collectives: HostCollectives | None = getattr(held, "collectives", None)
    if not optimizers_of(model):
        return [], []
    if collectives is None:
        return [], _ends_of_workers(extended, asks=asks)
    if collectives.horovod is None:
        return [], []
    ends = _SameEnd(
        collectives.size,
        tf.function(
            lambda own: collectives.sum_by_name(own, "popdist_ends_in_epoch"), autograph=False
        ),
        asks=asks,
    )
    steps = None if reduction is None else reduction.steps
    data = [fit.get("x"), fit.get("y")]
    sizes = SameSizes(collectives, fit, _warn_of_rows)
    before: list[Any] = [_SameSteps(collectives, steps, data), sizes]
    if reduction is not None:
        before.append(SynchronizeState(collectives, fit["callbacks"]))
    if keras_is_3() and collectives.rank:
        _keep_backups_apart(fit["callbacks"], collectives.rank)
    if keras_is_3() and reduction is None and collectives.rank:
        before.append(_FilesApart(fit["callbacks"]))
    return before, [ends, _SameAfterEpoch(collectives, sizes)]


def _ends_of_workers(extended: Any, *, asks: bool) -> list[Any]:
    """The comparison of `IPUMultiWorkerStrategy`, whose workers share no Horovod."""
    if getattr(extended, "size", 1) == 1 or not hasattr(extended, "sum_over_workers"):
        return []
    total = extended.sum_over_workers
    return [_SameEnd(extended.size, total, asks=asks, asks_after_epoch=True)]


class _SameSteps(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Compares the number of steps; where Keras does not know it, ends epochs together."""

    def __init__(
        self, collectives: HostCollectives, steps: AnnouncedSteps | None, data: Any
    ) -> None:
        super().__init__()
        self._collectives = collectives
        self._steps = steps
        self._data = data

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares, and makes an optimizer announce its steps where their number is unknown."""
        del logs
        number = self.params.get("steps")
        agree(self._collectives, f"an epoch of {number} steps")
        compare_layers(self._collectives, self.model)
        compare_arrays(self._collectives, self._data)
        if self._steps is not None:
            self._steps.want(number is None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tells the instances that still train that this one has no more data."""
        del epoch, logs
        if self._steps is not None:
            self._steps.end_of_epoch()


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
    """Stops a training that some instances end, and others continue.

    Args:
        size: Instances.
        total: Sums an integer over them.
        asks: Whether to ask all instances after each step; otherwise one that ends its training in
            the middle of an epoch fails alone.
        asks_after_epoch: Whether to ask after each epoch as well.
    """

    _supports_tf_logs = True  # else Keras copies the loss to the host in every step

    def __init__(
        self,
        size: int,
        total: Callable[[Any], Any],
        *,
        asks: bool,
        asks_after_epoch: bool = False,
    ) -> None:
        super().__init__()
        self._size = size
        self._total = total
        self._asks = asks
        self._asks_after_epoch = asks_after_epoch
        self._epoch = 0

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
        """Compares after an epoch, where nothing else does.

        Raises:
            AgreementError: Some instances end the training here.
        """
        del logs
        if self._asks_after_epoch:
            self._compare(f"epoch {epoch}")

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


class _SameAfterEpoch(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Compares the instances' weights and rows after an epoch, and whether they continue."""

    def __init__(self, collectives: HostCollectives, sizes: SameSizes) -> None:
        super().__init__()
        self._collectives = collectives
        self._sizes = sizes

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets rows of earlier calls."""
        del logs
        counted_rows(self.model).take(self._collectives.rank)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compares.

        Raises:
            AgreementError: An instance ends the training, or holds other weights.
        """
        del logs
        ends = "ends the training" if self.model.stop_training else "continues"
        found = compared(
            self._collectives,
            f"epoch {epoch}, after which it {ends}",
            counted_rows(self.model).take(self._collectives.rank),
            accepted="the same epochs on every instance",
            hint=_DECIDE_ALIKE,
        )
        if not self._sizes.has_compared:
            self._sizes.has_compared = bool(found)
            _warn_of_rows(self._collectives, self.model, found)
        self._compare_weights(f"after epoch {epoch}")

    def on_train_end(self, logs: Any = None) -> None:
        """Compares again: callbacks may have loaded the weights of another epoch.

        Raises:
            AgreementError: An instance holds other weights.
        """
        del logs
        self._compare_weights("at the end of the training")

    def _compare_weights(self, when: str) -> None:
        weights = [
            (variable_name(one), tensorflow_variable(one).numpy())
            for one in self.model.trainable_weights
        ]
        agree_on_weights(self._collectives, weights, when)


def _keep_backups_apart(callbacks: Iterable[Any], rank: int) -> None:
    """Gives other instances than the first one folders of their own for Keras 3's backups.

    All instances write a backup after an epoch, and each resumes from its own.
    """
    ending = f".instance{rank}"
    for one in callbacks:
        if isinstance(one, tf.keras.callbacks.BackupAndRestore):
            folder = str(one.backup_dir)
            for name, value in list(vars(one).items()):
                if str(value).startswith(folder) and not folder.endswith(ending):
                    setattr(one, name, folder + ending + str(value)[len(folder) :])


class _FilesApart(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps what other instances than the first one write apart from the first one's files.

    All instances write, as reading what is written may be an exchange. Keras 2 does the same.

    Args:
        callbacks: Of the program; those that write checkpoints are found among them.
    """

    def __init__(self, callbacks: Iterable[Any]) -> None:
        super().__init__()
        writing = tf.keras.callbacks.ModelCheckpoint
        self._paths = {one: one.filepath for one in callbacks if isinstance(one, writing)}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Gives each callback a temporary folder."""
        del logs
        self._folder = tempfile.TemporaryDirectory()
        for number, (callback, path) in enumerate(self._paths.items()):
            callback.filepath = str(Path(self._folder.name, str(number), Path(path).name))

    def on_train_end(self, logs: Any = None) -> None:
        """Gives the callbacks their paths back."""
        del logs
        for callback, path in self._paths.items():
            callback.filepath = path
        if self._folder is not None:
            self._folder.cleanup()
