"""Updates of an estimator's training: counted in the global step, repeated, and stopped in time.

The original adds to the global step after each call into TensorFlow, so a checkpoint written
during the call is labelled with one update too few. Here the step is part of the update.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_coordinator

from popdist_tf.errors import EstimatorValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "AssignAdd", "Assign"}


@contextmanager
def untouched_global_step() -> Iterator[None]:
    """Refuses code that changes the global step.

    Raises:
        EstimatorValueError: An operation that writes the global step was added to the graph.
    """
    graph = tf.compat.v1.get_default_graph()
    before = _writers(graph)
    yield
    if _writers(graph) > before:
        raise EstimatorValueError(
            "PD422",
            "Illegal increment of the `global_step` variable: the estimator counts the updates",
            hint="do not pass global_step to optimizer.minimize or optimizer.apply_gradients",
        )


def counted(train_op: Any, global_step: Any, updates: int) -> Any:
    """An operation that runs ``train_op``, and then adds ``updates`` to the global step."""
    with tf.control_dependencies([train_op]):
        return tf.group(global_step.assign_add(updates))


class StopAfterUpdates(tf.compat.v1.train.StopAtStepHook):  # type: ignore[misc]
    """Ends the training after a number of updates, where each call makes several.

    TensorFlow's own hook expects the step to grow by one, and would allow one call too many.
    """

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Ends the training where enough updates were made."""
        del run_values
        if run_context.session.run(self._global_step_tensor) >= self._last_step:
            run_context.request_stop()


def _writers(graph: Any) -> int:
    step = tf.compat.v1.train.get_global_step(graph)
    handles = {
        id(component.handle.op)
        for component in getattr(step, "values", (step,))
        if hasattr(component, "handle")
    }
    operations = (op for op in graph.get_operations() if op.type in _WRITES)
    return sum(id(op.inputs[0].op) in handles for op in operations)


def repeated(count: int, update: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The mean loss of ``count`` updates in sequence, and an operation that has run them all."""

    def body(done: Any, total: Any) -> tuple[Any, Any]:
        loss, train_op = update()
        with tf.control_dependencies([train_op]):
            return done + 1, total + tf.cast(loss, tf.float32)

    # One iteration at a time: a collective may not start again before it has ended.
    done, total = tf.compat.v1.while_loop(
        lambda done, _: done < count,
        body,
        [tf.constant(0), tf.constant(0.0)],
        parallel_iterations=1,
        back_prop=False,
    )
    return total / count, done.op


class RankContext(distribute_coordinator._WorkerContext):  # type: ignore[misc]
    """Makes a training session of each rank, of which the first alone is the chief.

    Every rank has a local session and initialises its own variables. If TensorFlow knew of the
    other ranks in any other way, it would leave the variables to the chief.
    """

    def __init__(self, strategy: Any, rank: int, session_config: Any) -> None:
        self._rank = rank
        session_config = session_config or tf.compat.v1.ConfigProto()
        super().__init__(strategy, None, None, None, session_config)

    def _is_chief(self) -> bool:
        return self._rank == 0
