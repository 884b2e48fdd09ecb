"""`IPUInfeedQueue`: a data set as the loop's source of elements."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class IPUInfeedQueue:
    """Hands the elements of a data set to a loop, one for each replica and iteration.

    Args:
        dataset: The elements; batches of one replica.
        device_ordinal: Accepted as published, as are the further arguments, without effect.
        prefetch_depth: How many elements are made ready ahead; None leaves it to TensorFlow.
        **_published: More published arguments, without effect on a host.

    Raises:
        ValueError: The elements have no fixed shape.
    """

    def __init__(
        self,
        dataset: Any,
        device_ordinal: Any = None,
        prefetch_depth: int | None = None,
        **_published: Any,
    ) -> None:
        del device_ordinal
        for spec in tf.nest.flatten(dataset.element_spec):
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"the elements of an IPUInfeedQueue need a fixed shape, not {spec.shape}: "
                    "batch with drop_remainder=True"
                )
        self._dataset = dataset.prefetch(prefetch_depth or tf.data.AUTOTUNE)
        self._iterator: Any = None
        # A graph's iterator belongs to the graph, not to the loop in which it is first used.
        if not tf.executing_eagerly():
            self._iterator = tf.compat.v1.data.make_initializable_iterator(self._dataset)

    @property
    def initializer(self) -> Any:
        """The operation that starts the data from the beginning, in graph mode."""
        if self._iterator is None or tf.executing_eagerly():
            raise RuntimeError("IPUInfeedQueue.initializer exists in graph mode only")
        return self._iterator.initializer

    @property
    def deleter(self) -> Any:
        """The operation that gives back what the queue holds: nothing, on a host."""
        return tf.no_op()

    def dequeue(self) -> Any:
        """The next element.

        Returns:
            A tensor, or a tuple or dict of them.
        """
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        if hasattr(self._iterator, "get_next"):
            return self._iterator.get_next()
        return next(self._iterator)

    _dequeue = dequeue


IPUIterator = IPUInfeedQueue
