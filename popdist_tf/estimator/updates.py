"""Updates of an estimator's training: counted in the global step, repeated, and stopped in time.

The original adds to the global step after each call into TensorFlow, so a checkpoint written
during the call is labelled with one update too few. Here the step is part of the update.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute import distribute_coordinator
from tensorflow.python.ops import control_flow_util

from popdist_tf.errors import AgreementError, EstimatorValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


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
            "Illegal increment of the `global_step` variable in the `model_fn`. The estimator "
            "counts the updates.",
            hint="do not pass global_step to optimizer.minimize or optimizer.apply_gradients",
        )


def counted(train_op: Any, global_step: Any, updates: int) -> Any:
    """An operation that runs ``train_op``, and then adds ``updates`` to the global step."""
    with tf.control_dependencies([train_op]):
        return tf.group(global_step.assign_add(updates))


class CountEvaluated(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Counts the batches of an evaluation in the global step, which a model function may read.

    As published, the step grows once for each loop. The results of the evaluation have the step of
    the checkpoint.

    Args:
        iterations: Batches of a loop.
    """

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._batches = 0

    def begin(self) -> None:
        """Adds the operations to the graph."""
        self._step = tf.compat.v1.train.get_global_step()
        self._value = tf.compat.v1.placeholder(self._step.dtype, [])
        self._assign = self._step.assign(self._value, read_value=False)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Keeps the checkpoint's step."""
        del coord
        self._first = session.run(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts a batch."""
        del run_values
        self._batches += 1
        if self._batches % self._iterations == 0:
            now = self._first + self._batches
            run_context.session.run(self._assign, {self._value: now})

    def end(self, session: Any) -> None:
        """Restores the checkpoint's step for the results."""
        session.run(self._assign, {self._value: self._first})


class StopAfterUpdates(tf.compat.v1.train.StopAtStepHook):  # type: ignore[misc]
    """Ends the training after a number of updates, where each call makes several.

    TensorFlow's own hook expects the step to grow by one, and would allow one call too many.
    """

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Ends the training where enough updates were made."""
        del run_values
        if run_context.session.run(self._global_step_tensor) >= self._last_step:
            run_context.request_stop()


class StopTogether(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Ends the training of all workers after the step in which a hook of one of them asks for it.

    A worker that ended it alone would leave the others waiting in their next step. Workers ask each
    other after every step, if a hook of one of them may stop. What may stop is read from the code
    of hooks and of the functions that they name; a hook that stops in another way fails.

    Args:
        strategy: The strategy of the training.
        hooks: The other hooks of this worker.
    """

    def __init__(self, strategy: Any, hooks: Iterable[Any]) -> None:
        self._strategy = strategy
        self._may_stop = any(map(_may_stop, hooks))
        self._by_program = False
        self._asks: bool | None = None
        self._own: Any = None
        self._asking: Any = None

    def begin(self) -> None:
        """Adds the question to the graph."""
        self._own = tf.compat.v1.placeholder(tf.int32, [])
        with self._strategy.scope():
            self._asking = self._strategy.reduce(tf.distribute.ReduceOp.SUM, self._own, axis=None)

    def before_run(self, run_context: Any) -> None:
        """Notes when code of the program asks for the end, and not a hook that does so on all."""
        self._by_program = run_context.stop_requested
        request_stop = run_context.request_stop

        def noted() -> None:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            self._by_program |= not caller.startswith(_ALIKE)
            request_stop()

        run_context.request_stop = noted

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Asks all workers; the last hook of a worker sees what the others have asked for.

        Raises:
            AgreementError: This worker ends the training by code that no hook names.
        """
        del run_values
        if self._asks is False:
            if self._by_program:
                raise AgreementError(
                    "PD007",
                    "this instance ends the training, and the others would wait for it forever",
                    value="request_stop was called by code that no hook names",
                    accepted="request_stop in a method of a hook, or in a function that it calls "
                    "by its name",
                    hint="name run_context.request_stop in after_run of the hook, where the "
                    "instances compare it",
                )
            return
        own = int(run_context.stop_requested) + self._may_stop * _MAY_STOP
        total = int(run_context.session.run(self._asking, {self._own: own}))
        self._asks = total >= _MAY_STOP
        if total % _MAY_STOP:
            run_context.request_stop()


def _may_stop(hook: Any) -> bool:
    """Whether a hook has code that may end a training, on its worker alone.

    TensorFlow's own hooks end it by the number of the step or a reduced loss, alike on all workers,
    except for those that read the results of evaluations.
    """
    if any("early_stopping" in one.__module__ for one in type(hook).__mro__):
        return True
    seen: set[int] = set()
    parts = [*type(hook).__mro__, *getattr(hook, "__dict__", {}).values()]
    return any(_mentions(one, "request_stop", seen) for one in parts)


_MAY_STOP = 1 << 20  # more than there are workers
_ALIKE = ("builtins", "horovod.", "popdist_tf.", "tensorflow.python.", "tensorflow_estimator.")
_MOST = 1000  # functions and classes that are read


def _mentions(held: Any, name: str, seen: set[int]) -> bool:
    """Whether the code of an object, or of what it names in turn, has a name."""
    held = getattr(held, "__func__", getattr(held, "func", held))  # of a method, of a partial
    module = getattr(held, "__module__", None) or ""
    if id(held) in seen or len(seen) > _MOST or module.startswith(_ALIKE):
        return False
    seen.add(id(held))
    code = getattr(held, "__code__", None)
    if code is None:
        if isinstance(held, property):
            parts = [held.fget, held.fset]
        elif isinstance(held, type):
            parts = [one for kind in held.__mro__ for one in vars(kind).values()]
        else:  # an object of the program, which the hook may ask
            parts = [type(held)] if module else []
        return any(_mentions(one, name, seen) for one in parts)
    names = _names(code)
    if name in names:
        return True
    known = {**held.__globals__, **inspect.getclosurevars(held).nonlocals}
    named = [known[one] for one in names | {*code.co_freevars} if one in known]
    # Of a module, what the code may read from it.
    modules = [vars(one) for one in named if inspect.ismodule(one)]
    named += [one[part] for one in modules for part in names if part in one]
    return any(_mentions(one, name, seen) for one in named if not inspect.ismodule(one))


def _names(code: Any) -> set[str]:
    """All names of a function's code, and of the functions inside of it."""
    inner = (_names(one) for one in code.co_consts if inspect.iscode(one))
    return set().union(code.co_names, *inner)


def _writers(graph: Any) -> int:
    step = tf.compat.v1.train.get_global_step(graph)
    handles = {
        id(component.handle.op)
        for component in getattr(step, "values", (step,))
        if hasattr(component, "handle")
    }
    operations = (op for op in graph.get_operations() if op.type in _WRITES)
    return sum(id(_outside(op.inputs[0].op)) in handles for op in operations)


def _outside(operation: Any) -> Any:
    """The operation outside of all loops that brings its value in."""
    while operation.type in ("Enter", "RefEnter"):
        operation = operation.inputs[0].op
    return operation


def repeated(count: int, update: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The mean loss of ``count`` updates in sequence, and an operation that has run them all."""
    inner = control_flow_util.ENABLE_CONTROL_FLOW_V2
    graph = tf.compat.v1.get_default_graph()
    scope = graph.get_name_scope()

    def body(done: Any, total: Any) -> tuple[Any, Any]:
        # Layers name their variables by the scope. An evaluation has no loop, and reads them.
        with _functional_control_flow(enabled=inner), graph.name_scope(scope and f"{scope}/"):
            loss, train_op = update()
            with tf.control_dependencies([train_op]):
                return done + 1, total + tf.cast(loss, tf.float32)

    # A loop of this graph, as in the original: what a model function makes beside its loss, such as
    # metrics, belongs to the graph and not to a function of its own.
    with _functional_control_flow(enabled=False):
        # One iteration at a time: a collective may not start again before it has ended.
        done, total = tf.compat.v1.while_loop(
            lambda done, _: done < count,
            body,
            [tf.constant(0), tf.constant(0.0)],
            parallel_iterations=1,
            back_prop=False,
        )
    return total / count, done.op


@contextmanager
def _functional_control_flow(*, enabled: bool) -> Iterator[None]:
    """Whether loops and branches that are built here are functions, as in TensorFlow 2."""
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = enabled
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


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
