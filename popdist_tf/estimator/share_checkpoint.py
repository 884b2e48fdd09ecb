"""Where ranks have folders of their own: all of them continue from the first one's checkpoint.

A rank that finds a checkpoint restores it, and one that finds none initialises its variables, which
is a collective. So before a training begins, all must have found the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from popdist_tf.collectives.agreement import agree

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives


def share_checkpoint(collectives: HostCollectives, model_dir: str) -> None:
    """Copies the first rank's newest checkpoint to ranks that do not see it; all must call it.

    Args:
        collectives: The job's collectives, over Horovod.
        model_dir: The estimator's folder, which may be another one on every host.

    Raises:
        AgreementError: A rank has a checkpoint although the first one has none.
    """
    prefix = tf.train.latest_checkpoint(model_dir)
    mine = None if prefix is None else Path(prefix).name
    with tf.init_scope(), context.eager_mode():
        first = _broadcast(collectives, mine)
        is_stale = first is None and mine is not None
        agree(collectives, f"a training that starts anew{f' beside {prefix}' if is_stale else ''}")
        lacks = first is not None and mine != first
        row = np.asarray([[lacks]], np.int32)
        if not np.asarray(collectives.allgather(tf.constant(row)).numpy()).any():
            return
        files = _broadcast(collectives, _read(prefix) if collectives.rank == 0 else None)
    if lacks:
        _write(Path(model_dir), first, files)


def _broadcast(collectives: HostCollectives, value: object) -> Any:
    assert collectives.horovod is not None  # noqa: S101 - asked for before
    return collectives.horovod.broadcast_object(value, root_rank=0)


def _read(prefix: str) -> dict[str, bytes]:
    files = Path(prefix).parent.glob(f"{Path(prefix).name}.*")
    return {file.name: file.read_bytes() for file in files}


def _write(folder: Path, name: str, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    tf.compat.v1.train.update_checkpoint_state(str(folder), str(folder / name))
