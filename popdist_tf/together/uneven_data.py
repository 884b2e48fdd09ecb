"""Stops a training whose instances run out of data at different times.

A known number of batches or steps is compared before the first one. Where it is unknown
(generators, filters), an instance that runs out early would leave the others waiting in their next
reduction. So there every batch is announced, in a number that is summed over the instances, and so
is the end of the data. Under a strategy the data set itself announces (`with_agreed_end`); the
wrapper of `popdist_tf.keras`, which does not see the data, announces each step before its gradients
are sent (`AnnouncedSteps`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives


_MESSAGE = (
    "[PD007] the instances have different numbers of batches: at least one of them has no more "
    "data and others have. Give all instances as many, by dataset.take(n) or steps_per_epoch. "
    "Instances that still have data, and all instances:"
)


def announce(collectives: HostCollectives, name: str, *, has_batch: bool) -> Any:
    """Tells the other instances whether this one has another batch.

    Args:
        collectives: The job's collectives.
        name: By which the instances' announcements find each other.
        has_batch: Whether there is a batch.

    Returns:
        A boolean scalar that is true, or fails when it is computed, on all instances, where some
        have a batch and others have none.
    """
    holders = collectives.sum_by_name(tf.constant(int(has_batch)), name)
    equal = tf.equal(holders, 0) | tf.equal(holders, collectives.size)
    check = tf.debugging.Assert(equal, [_MESSAGE, holders, collectives.size])
    with tf.control_dependencies([check]):
        return tf.identity(equal)


def _announcing(collectives: HostCollectives, name: str) -> Any:
    # A function, because Horovod would not find the call of an eager program by its name; and one
    # for each use, because operations of one graph cannot share a name.
    return tf.function(
        lambda has_batch: announce(collectives, name, has_batch=has_batch), autograph=False
    )


def with_agreed_end(dataset: Any, collectives: HostCollectives, number: int) -> Any:
    """Makes a data set end on all instances together, or stop with an explanation.

    Args:
        dataset: A data set of unknown length.
        collectives: The job's collectives.
        number: Which of the job's data sets this is, the same on all instances.

    Returns:
        The same elements.
    """
    name = f"popdist_batches_of_data_set_{number}"

    def announced(*element: Any) -> Any:
        with tf.control_dependencies([announce(collectives, name, has_batch=True)]):
            held = tf.nest.map_structure(tf.identity, element, expand_composites=True)
        return held if len(held) > 1 else held[0]

    def never(*_: Any) -> Any:
        with tf.control_dependencies([announce(collectives, name, has_batch=False)]):
            return tf.constant(value=False)

    # An empty data set of the same structure, which says so when it is reached.
    end = dataset.take(0)
    last = tf.data.Dataset.range(1).filter(never).flat_map(lambda _: end)
    options = tf.data.Options()
    # Batches that nobody asked for would be announced by instances that prefetch alone.
    options.experimental_optimization.inject_prefetch = False
    return dataset.map(announced).concatenate(last).with_options(options)


def is_endless(dataset: Any) -> bool:
    """Whether a data set repeats for ever, as far as its transformations tell in a graph.

    Args:
        dataset: A data set.

    Returns:
        False for what is not a data set, or may end.
    """
    if not isinstance(dataset, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
        return True  # not a data set: TensorFlow says what it takes
    if type(dataset).__name__ == "DatasetV1Adapter":  # whose inputs are those of what it wraps
        dataset = dataset._dataset
    known = tf.get_static_value(getattr(dataset, "_count", None))
    if type(dataset).__name__ == "_RepeatDataset" and known is not None:
        return bool(known < 0)
    # Whatever is made of the elements of one data set that is endless; `take` may end it.
    if type(dataset).__name__ in {"_TakeDataset", "_TakeWhileDataset", "_FilterDataset"}:
        return False
    inputs = dataset._inputs()
    return len(inputs) == 1 and is_endless(inputs[0])


class AnnounceInSession(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Announces the steps of an Estimator's training, and the end of its data.

    Args:
        collectives: The job's collectives.
    """

    def __init__(self, collectives: HostCollectives) -> None:
        self._announce = _announcing(collectives, "popdist_steps_in_session")
        self._end: Any = None
        self._is_running = False

    def before_step(self, features: Any) -> Any:
        """The features of a step, which exist when the step has been announced.

        Args:
            features: Tensors of a batch.
        """
        with tf.control_dependencies(tf.nest.flatten(features, expand_composites=True)):
            announced = self._announce(has_batch=True)
        with tf.control_dependencies([announced]):
            return tf.nest.map_structure(tf.identity, features, expand_composites=True)

    def begin(self) -> None:
        """Adds the announcement of the end to the graph."""
        self._end = self._announce(has_batch=False)

    def before_run(self, run_context: Any) -> None:
        """Notes that a step begins."""
        del run_context
        self._is_running = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Notes that the step has ended: there was a batch."""
        del run_context, run_values
        self._is_running = False

    def end(self, session: Any) -> None:
        """Announces the end, if the last step has found no batch.

        Raises:
            InvalidArgumentError: Other instances have another batch; raised there too.
        """
        if self._is_running:
            session.run(self._end)


class AnnouncedSteps:
    """Tells the other instances of each step, and of the end of an epoch, where they must know.

    Args:
        collectives: The job's collectives.
    """

    def __init__(self, collectives: HostCollectives) -> None:
        self._is_wanted: tf.Variable | None = None
        self._announce = _announcing(collectives, "popdist_steps_of_epoch")

    def want(self, is_wanted: bool) -> None:
        """Says whether the steps of this training are to be announced.

        Args:
            is_wanted: The same on every instance.
        """
        self._switch().assign(is_wanted)

    @property
    def is_wanted(self) -> Any:
        """Whether steps are to be announced, as a boolean scalar."""
        return self._switch().read_value()

    def announce(self) -> Any:
        """Announces a step that has data, where that is wanted.

        Returns:
            A boolean scalar.
        """
        return tf.cond(self.is_wanted, lambda: self._announce(has_batch=True), lambda: True)

    def end_of_epoch(self) -> None:
        """Announces the end of an epoch, where that is wanted.

        Raises:
            InvalidArgumentError: Other instances have another batch; raised there too.
        """
        if self._switch().numpy():
            self._announce(has_batch=False)

    def _switch(self) -> tf.Variable:
        if self._is_wanted is None:
            with tf.init_scope():
                self._is_wanted = tf.Variable(initial_value=False, trainable=False)
        return self._is_wanted
