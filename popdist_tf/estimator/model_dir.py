"""One folder for all ranks, where the user names none."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives

_LONGEST = 4096


def shared_model_dir(collectives: HostCollectives) -> str:
    """A new temporary folder, the same path on every rank; every rank must call it.

    TensorFlow would make a folder for each rank, and a second training would then start from
    different steps.

    Args:
        collectives: The job's collectives.

    Returns:
        Its path; it exists on this host.
    """
    path = tempfile.mkdtemp() if collectives.rank == 0 else ""
    letters = np.frombuffer(path.encode().ljust(_LONGEST, b"\0"), dtype=np.uint8)
    with tf.init_scope(), context.eager_mode():
        received = collectives.broadcast(tf.constant(letters)).numpy()
    path = bytes(received).rstrip(b"\0").decode()
    Path(path).mkdir(parents=True, exist_ok=True)
    return path
