"""The queues of compiled loops: infeeds of data set elements, and outfeeds of iteration values."""

from __future__ import annotations

import functools
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import tensorflow.compat.v2 as tf

from popdist.sdk.surface import missing
from popdist_tf.collectives.host import is_for_xla
from popdist_tf.errors import LayerError, StrategyError
from popdist_tf.loops.data import synthetic_or_real

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_DEEPEST = 256


def check_prefetch_depth(depth: int | None) -> None:
    """Refuses a number of prepared elements that a queue cannot have.

    Args:
        depth: The number; None for any.

    Raises:
        LayerError: It is not positive, or too large.
    """
    if depth is not None and not 0 < depth < _DEEPEST:
        wanted = "greater than zero" if depth <= 0 else f"less than {_DEEPEST}"
        raise LayerError("PD434", f"prefetch_depth must be {wanted}, but it is {depth}")


def _without_feed_name(init: Callable[..., None]) -> Any:
    """Drops the name of a queue, which SDK 2.2 and before had before the other settings."""

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *(one for one in args if not isinstance(one, str)), **kwargs)

    return wrapped


class IPUInfeedQueue:
    """Hands the elements of a data set to a loop, one for each replica and iteration.

    Args:
        dataset: The elements; batches of one replica.
        device_ordinal: Accepted as published, without effect.
        prefetch_depth: How many elements are prepared ahead; with None, TensorFlow decides.
        optimise_latency: Accepted as published, without effect on a host.
        **_published: Arguments of SDK 2.2 and before (as ``feed_name``, which may also be the
            second argument), without effect on a host.

    Attributes:
        dataset: The elements; synthetic ones where the program asks for them.

    Raises:
        LayerError: The argument is not a data set, or ``prefetch_depth`` is not valid.
        ValueError: The elements have no fixed shape.
    """

    @_without_feed_name
    def __init__(
        self,
        dataset: Any,
        device_ordinal: Any = None,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
        **_published: Any,
    ) -> None:
        del device_ordinal, optimise_latency
        if not isinstance(dataset, tf.data.Dataset | tf.compat.v1.data.Dataset):
            raise LayerError(
                "PD434",
                "IPUInfeedQueue takes a data set",
                value=type(dataset).__name__,
                accepted="a tf.data.Dataset",
                hint="tf.data.Dataset.from_tensor_slices(arrays).batch(n, drop_remainder=True)",
            )
        for spec in tf.nest.flatten(dataset.element_spec):
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"Output shape {spec.shape} is not fully defined. If using tf.Dataset.batch, "
                    "set `drop_remainder=True`."
                )
        check_prefetch_depth(prefetch_depth)
        self.dataset = synthetic_or_real(dataset)
        self._dataset = self.dataset.prefetch(prefetch_depth or tf.data.AUTOTUNE)
        self._iterator: Any = None
        self._is_dequeued = False
        # A graph's iterator belongs to the graph, not to the loop that first uses it.
        if not tf.executing_eagerly():
            self._iterator = tf.compat.v1.data.make_initializable_iterator(self._dataset)

    @property
    def initializer(self) -> Any:
        """The operation that restarts the data from the beginning; eagerly, it does so at once."""
        operation = getattr(self._iterator, "initializer", None)  # of a graph, wherever it is asked
        if operation is None:
            self._iterator = None
        return operation

    @property
    def deleter(self) -> Any:
        """The operation that frees the queue: on a host, an operation without effect."""
        return tf.no_op()

    def dequeue(self) -> Any:
        """The next element.

        Returns:
            A tensor, or a tuple or dict of them.
        """
        _refuse_xla("an infeed queue")
        self._is_dequeued = True
        if self._iterator is None:
            # Inside of a loop that is being built, the data would begin again in each iteration.
            with tf.init_scope():
                self._iterator = iter(self._dataset)
        has_get_next = hasattr(self._iterator, "get_next")
        element = self._iterator.get_next() if has_get_next else next(self._iterator)
        guard = getattr(tf.distribute.get_strategy().extended, "guard", None)
        return element if guard is None else guard.next_of_infeed(self, element)

    _dequeue = dequeue

    def get_next(self) -> Any:
        """Refuses to take an element, as a loop does so.

        Raises:
            ValueError: Always, as published.
        """
        raise ValueError(
            "`get_next()` is now obsolete as the IPUInfeedQueue is now automatically dequeued by "
            "the loop."
        )

    @property
    def number_of_tuple_elements(self) -> int:
        """How many arguments a loop's body gets of an element; 1 for a tensor."""
        spec = self.dataset.element_spec
        return len(spec) if isinstance(spec, (list, tuple)) else 1

    @property
    def dequeued(self) -> bool:
        """Whether a loop takes elements of this queue, as far as the program has been built."""
        return self._is_dequeued


class IPUIterator(IPUInfeedQueue):
    """Hands the elements of a data set to a program that asks for them by ``next``.

    Args:
        dataset: The elements; batches of one replica.
        **published: As for `IPUInfeedQueue`.
    """

    @property
    def element_spec(self) -> Any:
        """The structure of an element, as of `tf.data.Dataset`."""
        return self.dataset.element_spec

    def get_next(self) -> Any:
        """The next element.

        Raises:
            StopIteration: Eagerly, at the end of the data.
        """
        return next(self)

    def get_next_as_optional(self) -> Any:
        """Refuses an element that may be none.

        Raises:
            NotImplementedError: Always, as published.
        """
        raise NotImplementedError("IPU Dataset iterator does not support get_next_as_optional().")

    infeed_spec = missing("popdist_tf.ipu", "ipu_infeed_queue.IPUIterator.infeed_spec")

    def __iter__(self) -> IPUIterator:
        return self

    def __next__(self) -> Any:
        try:
            return self.dequeue()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None

    next = __next__


def _refuse_xla(queue: str) -> None:
    """Refuses a queue in a function for XLA; TensorFlow would name a missing kernel later."""
    if is_for_xla():
        raise StrategyError(
            "PD428",
            f"XLA cannot compile a loop with {queue} of a host",
            value="jit_compile=True",
            accepted="tf.function without jit_compile",
            hint="remove jit_compile=True: the loop computes the same without it",
        )


_CAPACITY = 2**31 - 1


def _outermost() -> Any:
    """The graph of TensorFlow 1 that is being built; None in eager code and its functions."""
    with tf.init_scope():
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


class IPUOutfeedMode(Enum):
    """Which values are kept."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """Collects values of a loop's iterations; the program reads them after the loop.

    Args:
        outfeed_mode: Whether all values are kept, or the last; None for all.
        device_ordinal: Accepted as published, without effect.
        buffer_depth: Accepted as published, without effect on a host.
        optimise_latency: Accepted as published, without effect on a host.
        **_published: Arguments of SDK 2.2 and before (as ``feed_name``, which may also be the
            first argument), without effect on a host.

    Raises:
        LayerError: The mode is not an `IPUOutfeedMode`.
    """

    @_without_feed_name
    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: Any = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
        **_published: Any,
    ) -> None:
        del device_ordinal, buffer_depth, optimise_latency
        outfeed_mode = outfeed_mode or IPUOutfeedMode.ALL
        if not isinstance(outfeed_mode, IPUOutfeedMode):
            raise LayerError(
                "PD434",
                "IPUOutfeedQueue has no such mode",
                value=outfeed_mode,
                accepted="IPUOutfeedMode.ALL or IPUOutfeedMode.LAST",
            )
        self._mode = outfeed_mode
        self._queues: dict[Any, tuple[Any, Any]] = {}  # by graph, with the structure of values
        self._enqueuing: WeakSet[Any] = WeakSet()  # graphs and functions

    @property
    def _queue(self) -> Any:
        """The queue of the graph, or of eager code and its functions; None before `enqueue`."""
        return self._queues.get(_outermost(), (None, None))[0]

    def enqueue(self, tensors: Any) -> Any:
        """Keeps the values of an iteration.

        Args:
            tensors: A tensor, or a list, tuple or dict of them.

        Returns:
            The operation that does so; it has to run, so return it from the loop's body.

        Raises:
            ValueError: The structure differs from that of an earlier call, or a graph or function
                has enqueued values already: those of one iteration would not be told apart.
            StrategyError: XLA is to compile the loop.
        """
        _refuse_xla("an outfeed queue")
        self._note_enqueuing()
        values = [tf.convert_to_tensor(value) for value in tf.nest.flatten(tensors)]
        replica = tf.distribute.get_replica_context()
        if replica is not None and getattr(replica.strategy.extended, "replicas_per_step", 1) > 1:
            return replica.merge_call(
                lambda _, *own: self._keep(tensors, [tf.stack(one.values) for one in own]),
                args=values,
            )
        return self._keep(tensors, values)

    def _note_enqueuing(self) -> None:
        replica = tf.distribute.get_replica_context()
        is_first = replica is None or not replica._replica_id_in_sync_group  # noqa: SLF001 - the number
        if tf.executing_eagerly() or not is_first:
            return
        graph = tf.compat.v1.get_default_graph()
        if graph in self._enqueuing:
            raise ValueError("An outfeed can only be enqueued once.")
        while graph is not None:
            self._enqueuing.add(graph)
            graph = getattr(graph, "outer_graph", None)

    def _keep(self, tensors: Any, values: list[Any]) -> Any:
        key = _outermost()
        if key not in self._queues:
            # The queue is created outside of the loop or function that is being built.
            with tf.init_scope():
                queue = tf.queue.FIFOQueue(
                    _CAPACITY,
                    [value.dtype for value in values],
                    [value.shape for value in values],
                )
            self._queues[key] = queue, tf.nest.map_structure(lambda _: None, tensors)
        queue, structure = self._queues[key]
        tf.nest.assert_same_structure(structure, tensors)
        return queue.enqueue(values)

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Takes out what was kept since the last call.

        Args:
            wait_for_completion: Accepted as published: values are complete when a loop is.

        Returns:
            In the structure of `enqueue`: every value with the number of iterations as its first
            dimension, or the last iteration's value.

        Raises:
            ValueError: Nothing was ever enqueued.
        """
        del wait_for_completion
        queue, structure = self._queues.get(_outermost(), (None, None))
        if queue is None:
            raise ValueError(
                "Trying to dequeue an outfeed which has not been enqueued. Call "
                "IPUOutfeedQueue.enqueue in the loop first."
            )
        found = queue.dequeue_many(queue.size())
        found = found if isinstance(found, (list, tuple)) else [found]
        if self._mode is IPUOutfeedMode.LAST:
            found = [value[-1] for value in found]
        return tf.nest.pack_sequence_as(structure, list(found))

    def __iter__(self) -> Iterator[Any]:
        """The values of each iteration since the last call, and of those that end meanwhile.

        Raises:
            RuntimeError: A graph is being built, in which the values are not known yet, or the
                queue keeps the last value alone.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("IPUOutfeedQueue can only be iterated over in eager mode.")
        if self._mode is not IPUOutfeedMode.ALL:
            raise RuntimeError(
                "IPUOutfeedQueue can only be iterated over if the `outfeed_mode` is set to "
                "'IPUOutfeedMode.ALL'."
            )
        return IPUOutfeedQueueIterator(self)

    @property
    def count(self) -> Any:
        """How many iterations' values are kept now, an int32 scalar."""
        return tf.constant(0) if self._queue is None else self._queue.size()

    @property
    def mode(self) -> IPUOutfeedMode:
        """Which values are kept."""
        return self._mode

    @property
    def enqueued(self) -> bool:
        """Whether something has been enqueued, as far as the graph or program has been built."""
        return self._queue is not None

    @property
    def deleter(self) -> Any:
        """The operation that closes the queue."""
        return tf.no_op() if self._queue is None else self._queue.close()


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """An outfeed queue of eager programs, which is freed when nothing refers to it any more.

    Args:
        outfeed_mode: As for `IPUOutfeedQueue`; None for all values.
        device_ordinal: Accepted as published, without effect.

    Raises:
        RuntimeError: A graph is being built.
    """

    def __init__(self, outfeed_mode: Any = None, device_ordinal: Any = None) -> None:
        if not tf.executing_eagerly():
            raise RuntimeError("ScopedIPUOutfeedQueue exists in eager code only")
        super().__init__(outfeed_mode or IPUOutfeedMode.ALL, device_ordinal)


class IPUOutfeedQueueIterator:
    """Iterates over what an outfeed queue holds, in eager code.

    Args:
        outfeed_queue: The queue.
    """

    def __init__(self, outfeed_queue: IPUOutfeedQueue) -> None:
        self._queue = outfeed_queue
        self._values: deque[Any] = deque()

    def __iter__(self) -> IPUOutfeedQueueIterator:
        return self

    def __next__(self) -> Any:
        if not self._values and self._queue.enqueued:
            found = self._queue.dequeue()
            parts = [tf.unstack(value) for value in tf.nest.flatten(found)]
            self._values.extend(
                tf.nest.pack_sequence_as(found, one) for one in zip(*parts, strict=True)
            )
        if not self._values:
            raise StopIteration
        return self._values.popleft()
