"""What instances save: the same state, and files that do not overwrite each other.

Each instance computes moving averages from its own rows. Under `popdist_tf.keras` no
strategy combines them, and a file would depend on the instance that writes it. So state that no
gradient changes is averaged over the instances after each epoch, and after the steps in which a
callback of Keras saves, before callbacks of the program write anything.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf

from popdist_tf.collectives.agreement import agree, text_of_root
from popdist_tf.collectives.instances import job_collectives
from popdist_tf.versions import keras_is_3, tensorflow_variable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popdist_tf.collectives.host import HostCollectives


def synchronize_state(model: Any) -> None:
    """Makes the state of a model that is not trained equal on all instances; all must call it.

    Numbers of floating point, such as the averages of batch normalization, become their mean over
    the instances. All others, such as counters and states of random numbers, become those of the
    first instance. `fit` with an optimizer of `DistributedOptimizer` does so after each epoch, for
    random numbers at its end alone, as each instance draws numbers of its own.

    Args:
        model: A model of Keras.
    """
    _synchronize(job_collectives(), _untrained(model))


class SynchronizeState(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Synchronizes after each epoch and at the end of the training; before callbacks that save.

    It also does so after steps in which a callback of Keras saves (``save_freq``) on any instance.

    Args:
        collectives: The job's collectives.
        callbacks: Those of the program on this instance.
    """

    _supports_tf_logs = True  # else Keras copies the logs to the host in every step

    def __init__(self, collectives: HostCollectives, callbacks: Iterable[Any] = ()) -> None:
        super().__init__()
        self._collectives = collectives
        own = {getattr(one, "save_freq", None) for one in callbacks}
        steps = np.array(sorted(one for one in own if type(one) is int), np.int64)
        found = steps
        if collectives.horovod is not None:
            agree(collectives, "a training of a model")
            found = collectives.allgather(tf.constant(steps))
        self._seen = dict.fromkeys(np.unique(found).tolist(), 0)  # batches since the last save
        self._last = -1

    def _implements_train_batch_hooks(self) -> bool:
        return bool(self._seen)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Synchronizes where some instance saves, counting batches as Keras does."""
        more = batch - self._last if batch > self._last else batch + 1
        self._last = batch
        self._seen = {every: seen + more for every, seen in self._seen.items()}
        due = [every for every, seen in self._seen.items() if seen >= every]
        self._seen.update(dict.fromkeys(due, 0))
        if due:
            self.on_epoch_end(0, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Synchronizes all but random numbers."""
        del epoch, logs
        held = [one for one in _untrained(self.model) if not _is_random(one)]
        _synchronize(self._collectives, held)

    def on_train_end(self, logs: Any = None) -> None:
        """Synchronizes random numbers as well."""
        del logs
        _synchronize(self._collectives, _untrained(self.model))


def _untrained(model: Any) -> list[Any]:
    held = model.non_trainable_variables if keras_is_3() else model.non_trainable_weights
    return [tensorflow_variable(one) for one in held]


def _is_random(variable: Any) -> bool:
    return variable.dtype in (tf.uint32, tf.uint64) or "seed_generator" in variable.name


def _synchronize(collectives: HostCollectives, variables: Iterable[Any]) -> None:
    held = [one for one in variables if one.dtype != tf.string]
    if collectives.horovod is None or not held:
        return
    floats = [one for one in held if one.dtype.is_floating]
    others = [one for one in held if not one.dtype.is_floating]
    agree(collectives, f"state of {len(floats)} averages and {len(others)} other variables")
    if floats:
        own = np.concatenate([one.numpy().ravel().astype(np.float64) for one in floats])
        # The first instance's values and a mean difference: equal values remain as they are.
        first = collectives.broadcast(tf.constant(own), 0).numpy()
        apart = collectives.allreduce(tf.constant(own - first)).numpy() / collectives.size
        ends = np.cumsum([one.shape.num_elements() for one in floats])[:-1]
        for variable, values in zip(floats, np.split(first + apart, ends), strict=True):
            variable.assign(tf.cast(tf.reshape(values, variable.shape), variable.dtype))
    for variable in others:
        variable.assign(collectives.broadcast(variable.read_value(), 0))


# Files that callbacks of Keras write. All instances write, as reading what is written may be an
# exchange.


def share_backups(collectives: HostCollectives, callbacks: Iterable[Any]) -> None:
    """Lets all instances resume from the first one's backup, which Keras 2 writes alone.

    Args:
        collectives: The job's collectives.
        callbacks: Of the program.
    """
    for one in callbacks:
        if isinstance(one, tf.keras.callbacks.BackupAndRestore):
            agree(collectives, "a training with BackupAndRestore")
            one.backup_dir = text_of_root(collectives, one.backup_dir)


def keep_backups_apart(callbacks: Iterable[Any], rank: int) -> None:
    """Gives other instances than the first one folders of their own for Keras 3's backups.

    All instances write a backup after an epoch, and each resumes from its own.

    Args:
        callbacks: Of the program.
        rank: Of this instance.
    """
    ending = f".instance{rank}"
    for one in callbacks:
        if isinstance(one, tf.keras.callbacks.BackupAndRestore):
            folder = str(one.backup_dir)
            for name, value in list(vars(one).items()):
                if str(value).startswith(folder) and not folder.endswith(ending):
                    setattr(one, name, folder + ending + str(value)[len(folder) :])


class CheckpointsApart(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps other instances' checkpoints apart from the first one's, as Keras 2 does.

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
