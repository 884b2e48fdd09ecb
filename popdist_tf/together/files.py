"""Files that callbacks of Keras write: the first instance's are kept, and all instances resume.

All instances write, as reading what is written may be an exchange.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.collectives.agreement import agree, text_of_root

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popdist_tf.collectives.host import HostCollectives


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
