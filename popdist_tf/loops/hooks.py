"""A hook that logs values of a loop's iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf
from tensorflow.python.platform import tf_logging

from popdist_tf.errors import LayerError
from popdist_tf.loops.queues import IPUOutfeedMode, IPUOutfeedQueue

if TYPE_CHECKING:
    from collections.abc import Callable


class IPULoggingTensorHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Logs values of iterations, every so many steps or seconds, or at the end.

    Args:
        every_n_iter: After how many runs of the session.
        every_n_secs: After how many seconds.
        at_end: Whether to log at the end; with neither of the others, then alone.
        formatter: From a dict of names and values to a text; None for all of them in a line.
        logging_mode: Whether the last iteration's values are logged, or those of all iterations
            since the last time.
        feed_name: Accepted as published.
        replication_factor: Accepted as published: values of several local replicas have one more
            dimension.

    Raises:
        LayerError: The arguments do not say when, or say it twice.
    """

    LoggingMode = IPUOutfeedMode

    def __init__(
        self,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
        logging_mode: IPUOutfeedMode = IPUOutfeedMode.LAST,
        feed_name: str | None = None,
        replication_factor: int = 1,
    ) -> None:
        del feed_name, replication_factor
        given = [one for one in (every_n_iter, every_n_secs) if one is not None]
        if len(given) > 1:
            raise LayerError("PD434", "Cannot provide both every_n_iter and every_n_secs")
        if not (given or at_end):
            raise LayerError(
                "PD434", "Either every_n_iter, every_n_secs or at_end should be provided"
            )
        if any(one <= 0 for one in given):
            raise LayerError("PD434", "the interval of a log must be positive", value=given[0])
        self._timer = tf.compat.v1.train.SecondOrStepTimer(
            every_secs=every_n_secs, every_steps=every_n_iter or (None if given else _NEVER)
        )
        self._is_timed = bool(given)
        self._at_end = at_end
        self._formatter = formatter
        self._outfeed = IPUOutfeedQueue(logging_mode)
        self._count: Any = None
        self._values: Any = None
        self._runs = 0

    def log(self, tensors: Any) -> Any:
        """Keeps values of an iteration for the log.

        Args:
            tensors: A tensor, or a list, tuple or dict of them.

        Returns:
            The operation that does so; it has to run, so group it with the training operation.

        Raises:
            RuntimeError: It is the second call.
            TypeError: A value without a name is not a tensor.
        """
        if self._outfeed.enqueued:
            raise RuntimeError(
                "Cannot use this hook object's log function more than once. Either enqueue all "
                "tensors in a single log call using a list or dict, or create another hook."
            )
        if not isinstance(tensors, dict):
            held = tensors if isinstance(tensors, (list, tuple)) else [tensors]
            for one in held:
                if not tf.is_tensor(one):
                    raise TypeError(f"Expected `tf.Tensor`, got {type(one)}")
            tensors = {one.name: one for one in held}
        return self._outfeed.enqueue(tensors)

    def begin(self) -> None:
        """Adds the reading of the values to the graph."""
        self._timer.reset()
        self._runs = 0
        if not self._outfeed.enqueued:
            raise RuntimeError(
                "This logging hook's outfeed was not enqueued. Did you forget to call the log "
                "function?"
            )
        self._count = self._outfeed.count
        self._values = self._outfeed.dequeue()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Logs, where it is time."""
        del run_values
        if self._is_timed and self._timer.should_trigger_for_step(self._runs):
            self._log(run_context.session)
        self._runs += 1

    def end(self, session: Any) -> None:
        """Logs what is left, where that is wanted."""
        if self._at_end:
            self._log(session)

    def _log(self, session: Any) -> None:
        elapsed, _ = self._timer.update_last_triggered_step(self._runs)
        if not session.run(self._count):
            return
        found = session.run(self._values)
        if self._formatter is not None:
            text = self._formatter(found)
        else:
            with np.printoptions(suppress=True):
                text = ", ".join(f"{name} = {one}" for name, one in found.items())
        spent = "" if elapsed is None else f" ({elapsed:.3f} sec)"
        tf_logging.info(f"{text}{spent}")


_NEVER = 2**62
