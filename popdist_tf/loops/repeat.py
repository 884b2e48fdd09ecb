"""Loops and `ipu_compiler.compile`: bodies that run several times, and functions built once.

All local replicas of a process share one loop, because TensorFlow's threads cannot meet inside
loops of their own.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute import distribute_utils

from popdist_tf.program_code import program_code
from popdist_tf.state_updates import StateUpdates
from popdist_tf.strategies.extended import device_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def _graph_of_program() -> Any:
    """The scope of the graph that the program builds, which makes it the outermost one.

    `tf.init_scope` finds a graph from inside of a loop's body only if a scope says that it is the
    default one. Without, it would find eager code, as between `context.graph_mode` and its end.
    """
    if tf.executing_eagerly() or tf.inside_function():
        return nullcontext()
    return tf.compat.v1.get_default_graph().as_default()


def repeat(
    n: int,
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: Any = None,
    use_while_v1: bool = True,
) -> Any:
    """Runs a body a number of times.

    Args:
        n: How often.
        body: Called with the loop's values, then with an element of the queue (a tuple's parts as
            further arguments, a dict as keywords). Returns the new values; operations among them
            run in each iteration.
        inputs: The first values.
        infeed_queue: Where elements come from.
        use_while_v1: Accepted as published, without effect on a host.

    Returns:
        The last values; an operation where there are none.

    """
    return while_loop(
        lambda *_: tf.constant(value=True), body, inputs, infeed_queue, n, use_while_v1
    )


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: Any = None,
    maximum_iterations: int | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Runs a body while a condition holds.

    Args:
        condition: Called with the loop's values; returns a boolean scalar.
        body: As for `repeat`.
        inputs: The first values.
        infeed_queue: Where elements come from.
        maximum_iterations: The most iterations; None for any number.
        use_while_v1: Accepted as published, without effect on a host.

    Returns:
        The last values; an operation where there are none.

    Raises:
        ValueError: The body returned another number of values than it was given.
    """
    del use_while_v1
    condition, body = program_code(condition), program_code(body)
    first = [] if inputs is None else [tf.convert_to_tensor(value) for value in _as_list(inputs)]

    def holds(index: Any, *values: Any) -> Any:
        wanted = tf.convert_to_tensor(condition(*values))
        return wanted if maximum_iterations is None else wanted & (index < maximum_iterations)

    replica = tf.distribute.get_replica_context()
    if replica is not None and _local_replicas(replica.strategy) > 1:
        values = replica.merge_call(
            lambda strategy, *own: _loop_of_replicas(strategy, holds, body, own, infeed_queue),
            args=first,
        )
    else:
        with _graph_of_program():
            values = _loop(
                holds, lambda own: [_iteration(body, own[0], _dequeued(infeed_queue))], [first]
            )[0]
    if first:
        return values[1:] if len(first) > 1 else values[1]
    return tf.group(values[0])


def _loop_of_replicas(
    strategy: Any, holds: Callable[..., Any], body: Callable[..., Any], own: Any, queue: Any
) -> Any:
    """One loop for all local replicas, whose threads could not meet in separate loops to reduce."""
    count = _local_replicas(strategy)
    starts = [[distribute_utils.select_replica(i, value) for value in own] for i in range(count)]

    def iterations(values: list[list[Any]]) -> list[list[Any]]:
        elements: list[Any] = []
        taken: list[Any] = []
        for _ in range(count):
            # Replicas take their elements in the order of their ids, on every run.
            with tf.control_dependencies(taken):
                elements.append(_dequeued(queue))
            taken = [one for one in tf.nest.flatten(elements[-1]) if tf.is_tensor(one)]

        def replica(number: int) -> Any:
            return _iteration(body, values[number], elements[number])

        numbers = distribute_utils.regroup(tuple(range(count)), always_wrap=True)
        results = strategy.extended.call_for_each_replica(replica, args=(numbers,))
        return [
            [distribute_utils.select_replica(i, value) for value in results] for i in range(count)
        ]

    # The number of iterations is each replica's first result, as an operation of its own.
    return distribute_utils.regroup(_loop(holds, iterations, starts), always_wrap=True)


def _loop(
    holds: Callable[..., Any],
    iterations: Callable[[list[list[Any]]], list[list[Any]]],
    starts: list[list[Any]],
) -> list[list[Any]]:
    """A loop over all replicas' values until the first one's end it; results start with a count."""
    size = len(starts[0])

    def split(values: Any) -> list[list[Any]]:
        return [list(values[i : i + size]) for i in range(0, size * len(starts), size)] or [[]]

    def once(index: Any, *values: Any) -> list[Any]:
        held = split(values) if size else [[] for _ in starts]
        results = iterations(held)
        # All replicas have ended an iteration before one begins the next.
        with tf.control_dependencies([one for result in results for one in result]):
            flat = [tf.identity(one) for result in results for one in result[1:]]
            return [index + 1, *flat]

    # One iteration at a time: a collective may not start again before it has ended.
    last = tf.compat.v1.while_loop(
        lambda index, *values: holds(index, *values[:size]),
        once,
        [tf.constant(0), *(value for start in starts for value in start)],
        parallel_iterations=1,
        back_prop=False,
    )
    index, *values = last if isinstance(last, (list, tuple)) else [last]
    parts = split(values) if size else [[] for _ in starts]
    return [[tf.identity(index), *part] for part in parts]


def _iteration(
    body: Callable[..., Any], values: list[Any], element: tuple[tuple[Any, ...], dict[str, Any]]
) -> list[Any]:
    """Runs a body once; the first result is a scalar to wait for, the others are the new values."""
    arguments, keywords = element
    with StateUpdates() as updates:
        results = _as_list(body(*values, *arguments, **keywords))
    operations = [result for result in results if isinstance(result, tf.Operation)]
    # Eagerly, what would be an operation has run and returned None.
    tensors = [one for one in results if one is not None and not isinstance(one, tf.Operation)]
    if len(tensors) != len(values):
        raise ValueError(
            f"the body of a loop takes {len(values)} values and returned {len(tensors)}: "
            "every value that goes in must come out again"
        )
    with tf.control_dependencies([*operations, *updates.operations, *tensors]):
        return [tf.constant(value=True), *(tf.identity(tensor) for tensor in tensors)]


def _local_replicas(strategy: Any) -> int:
    return int(getattr(strategy.extended, "replicas_per_step", 1))


def _dequeued(queue: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The next element of a queue, as the positional and keyword arguments of a body."""
    if queue is None:
        return (), {}
    element = queue.dequeue()
    # A tuple of a single dict counts as the dict, as published.
    if isinstance(element, tuple) and len(element) == 1 and isinstance(element[0], dict):
        (element,) = element
    if isinstance(element, dict):
        return (), element
    return (tuple(element), {}) if isinstance(element, (list, tuple)) else ((element,), {})


def _as_list(values: Any) -> list[Any]:
    if values is None:
        return []
    return list(values) if isinstance(values, (list, tuple)) else [values]


# `ipu_compiler.compile`: building a function as one computation.


def compile(  # noqa: A001 - published name
    computation: Callable[..., Any], inputs: Sequence[Any] | None = None
) -> Any:
    """Builds a computation from a function.

    Args:
        computation: Called once with the inputs; returns tensors, operations, or nothing.
        inputs: What it is called with.

    Returns:
        What ``computation`` returned, in the same structure, with these exceptions, as published:
        a list where it returned a flat list, a tuple or one tensor; an operation where it returned
        no tensors. Operations of a flat list run with any of the tensors, and so do loops,
        pipelines and outfeeds of the computation, whether it has returned them or not.

    Raises:
        TypeError: ``inputs`` is not a list or tuple.
        ValueError: An operation stands inside of a nested structure, or before a tensor.
    """
    if inputs is not None and not isinstance(inputs, (list, tuple)):
        raise TypeError(f"ipu_compiler.compile needs a list of inputs: {inputs!r}")
    with device_code(), resource_variables(), StateUpdates(compiled=True) as updates:
        outputs = program_code(computation)(
            *(tf.nest.map_structure(tf.convert_to_tensor, list(inputs or [])))
        )
    kinds = {type(one).__name__ for one in _items(outputs)}
    if kinds & {"EstimatorSpec", "IPUEstimatorSpec"}:
        raise ValueError(
            "Your computation output contains an EstimatorSpec or IPUEstimatorSpec object. An "
            "IPUEstimator needs no call of compile(): give it the model function itself."
        )
    if _is_flat(outputs):
        # Eagerly, what would be an operation has run and returned None.
        flat = [one for one in _as_list(outputs) if one is not None]
    else:
        flat = tf.nest.flatten(outputs)
    operations = [one for one in flat if isinstance(one, tf.Operation)]
    tensors = [one for one in flat if not isinstance(one, tf.Operation)]
    if operations and not _is_flat(outputs):
        raise ValueError(
            "xla.compile does not support Operation as return value in non-flat output structure: "
            f"{operations[0].name}; return it in a list of tensors and operations"
        )
    with tf.control_dependencies([*operations, *updates.operations]):
        if not tensors:
            return tf.group(*operations, *updates.operations)
        results = [tf.identity(tensor) for tensor in tensors]
    return results if _is_flat(outputs) else tf.nest.pack_sequence_as(outputs, results)


@contextmanager
def resource_variables() -> Iterator[None]:
    """Makes variables whose values stay as they were read, as of a computation of the original.

    Gradients of a variable of TensorFlow 1's own kind may be computed after its update.
    """
    scope = tf.compat.v1.get_variable_scope()
    known = scope.use_resource
    scope.set_use_resource(True)
    try:
        yield
    finally:
        scope.set_use_resource(known)


def _items(outputs: Any) -> Iterator[Any]:
    """A result and, of lists and tuples, what they hold; a named tuple is one of the items too."""
    yield outputs
    if isinstance(outputs, (list, tuple)):
        for one in outputs:
            yield from _items(one)


def _is_flat(outputs: Any) -> bool:
    """Whether a function's result is one tensor or operation, or a list or tuple of them."""
    nested = tf.nest.is_nested
    return not nested(outputs) or (
        isinstance(outputs, (list, tuple)) and not any(map(nested, outputs))
    )
