"""`loops`: bodies that run several times in one call into TensorFlow."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow as tf

from popdist_tf.errors import EstimatorUnsupportedError, StrategyError
from popdist_tf.state_updates import StateUpdates
from popdist_tf.strategies.extended import device_code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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

    Raises:
        StrategyError: This instance has several replicas.
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
        StrategyError: This instance has several replicas.
        ValueError: The body returned another number of values than it was given.
    """
    del use_while_v1
    _refuse_local_replicas()
    first = [] if inputs is None else [tf.convert_to_tensor(value) for value in _as_list(inputs)]

    def holds(index: Any, *values: Any) -> Any:
        wanted = tf.convert_to_tensor(condition(*values))
        return wanted if maximum_iterations is None else wanted & (index < maximum_iterations)

    def once(index: Any, *values: Any) -> list[Any]:
        arguments, keywords = _dequeued(infeed_queue)
        with StateUpdates() as updates:
            results = _as_list(body(*values, *arguments, **keywords))
        operations = [result for result in results if isinstance(result, tf.Operation)]
        operations += updates.operations
        tensors = [result for result in results if not isinstance(result, tf.Operation)]
        if len(tensors) != len(values):
            raise ValueError(
                f"the body of a loop takes {len(values)} values and returned {len(tensors)}: "
                "every value that goes in must come out again"
            )
        with tf.control_dependencies([*operations, *tensors]):
            return [index + 1, *(tf.identity(tensor) for tensor in tensors)]

    # One iteration at a time: a collective may not start again before it has ended.
    last = tf.compat.v1.while_loop(
        holds, once, [tf.constant(0), *first], parallel_iterations=1, back_prop=False
    )
    values = last[1:] if first else []
    if values:
        return values if len(values) > 1 else values[0]
    return _ended(last)


def _refuse_local_replicas() -> None:
    """Refuses loops in programs of several local replicas.

    TensorFlow builds these replicas in threads that meet wherever they reduce, and cannot let them
    meet inside of a loop.
    """
    replicas = getattr(tf.distribute.get_strategy().extended, "replicas_per_step", 1)
    if replicas > 1:
        raise StrategyError(
            "PD412",
            f"a compiled loop cannot run {replicas} replicas in one instance on a host",
            hint="give every replica an instance of its own: poprun --num-instances N "
            "--num-replicas N",
        )


def _ended(last: Any) -> Any:
    return tf.group(last[0] if isinstance(last, (list, tuple)) else last)


def _dequeued(queue: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if queue is None:
        return (), {}
    element = queue.dequeue()
    if isinstance(element, dict):
        return (), element
    return (tuple(element), {}) if isinstance(element, (list, tuple)) else ((element,), {})


def _as_list(values: Any) -> list[Any]:
    if values is None:
        return []
    return list(values) if isinstance(values, (list, tuple)) else [values]


# `ipu_compiler.compile`: calling a function as one computation.


def compile(  # noqa: A001 - published name
    computation: Callable[..., Any], inputs: Sequence[Any] | None = None
) -> Any:
    """Builds a computation from a function.

    Args:
        computation: Called once with the inputs; returns tensors, operations, or nothing.
        inputs: What it is called with.

    Returns:
        The tensors as a list, where there is one as well as where there are several; an operation
        where there are none. Operations that ``computation`` returned run with any of the tensors.

    Raises:
        TypeError: ``inputs`` is no list or tuple.
    """
    if inputs is not None and not isinstance(inputs, (list, tuple)):
        raise TypeError(f"ipu_compiler.compile needs a list of inputs: {inputs!r}")
    with device_code(), StateUpdates() as updates:
        outputs = computation(*(tf.nest.map_structure(tf.convert_to_tensor, list(inputs or []))))
    flat = [] if outputs is None else _flat(outputs)
    operations = [output for output in flat if isinstance(output, tf.Operation)]
    operations += updates.operations
    tensors = [output for output in flat if not isinstance(output, tf.Operation)]
    with tf.control_dependencies(operations):
        if not tensors:
            return tf.group(*operations)
        return [tf.identity(tensor) for tensor in tensors]


def _flat(outputs: Any) -> list[Any]:
    return [output for output in tf.nest.flatten(outputs) if output is not None]


# Pipelining: refused with a word on what to do instead.


class PipelineSchedule(Enum):
    """In which order the stages of a pipeline run."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


def pipeline(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Refuses to pipeline: a host has one device for each replica, and nothing to pipeline over.

    Raises:
        EstimatorUnsupportedError: Always.
    """
    raise EstimatorUnsupportedError(
        "PD423",
        "pipelining_ops.pipeline is not available on a host: a replica has one device",
        hint="call the stages one after the other inside ipu.loops.repeat, and apply the sum of "
        "the gradients of as many elements as gradient_accumulation_count said",
    )


class IPUPipelineEstimator:
    """Refuses to be created; see `pipeline`.

    Raises:
        EstimatorUnsupportedError: Always.
    """

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise EstimatorUnsupportedError(
            "PD423",
            "IPUPipelineEstimator is not available on a host: a replica has one device",
            hint="use IPUEstimator, with a model_fn that calls the stages one after the other",
        )


IPUPipelineEstimatorSpec = IPUPipelineEstimator
