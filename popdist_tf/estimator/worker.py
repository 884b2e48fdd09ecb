"""This rank among the others, as TensorFlow's training sessions ask about it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_coordinator


class RankContext(distribute_coordinator._WorkerContext):  # type: ignore[misc]
    """Makes a training session of each rank, of which the first alone is the chief.

    Every rank has a local session and initialises its own variables, which TensorFlow would leave
    to the chief where it is told about the others in any other way.

    Args:
        strategy: The strategy of the job.
        rank: This rank.
        session_config: TensorFlow's settings of the session, or None.
    """

    def __init__(self, strategy: Any, rank: int, session_config: Any) -> None:
        self._rank = rank
        session_config = session_config or tf.compat.v1.ConfigProto()
        super().__init__(strategy, None, None, None, session_config)

    def _is_chief(self) -> bool:
        return self._rank == 0
