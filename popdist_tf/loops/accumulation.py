"""Gradient accumulation over several micro-batches before one update.

Each replica accumulates its own gradients. The update then reduces the total over the replicas, as
the update of a single batch does.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import PipelineError
from popdist_tf.replica_state import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class GradientAccumulationReductionMethod(Enum):
    """How the gradients of several micro-batches are combined."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse(cls, reduction_method: Any) -> GradientAccumulationReductionMethod:
        """The member for a member, or for its name in any case.

        Args:
            reduction_method: A member or a name.

        Returns:
            The member.

        Raises:
            PipelineError: The method does not exist. It is a `ValueError`.
        """
        if isinstance(reduction_method, cls):
            return reduction_method
        name = str(reduction_method).upper()
        if not isinstance(reduction_method, str) or name not in cls.__members__:
            raise PipelineError(
                "PD424",
                f"Cannot parse {reduction_method} as one of GradientAccumulationReductionMethod.",
                value=reduction_method,
                accepted=", ".join(cls.__members__),
            )
        return cls[name]


class GradientAccumulator:
    """The gradients of one replica, from one update to the next.

    Args:
        count: Micro-batches of an update: an integer, or an int32 scalar.
        method: How their gradients are combined.
        dtype: Dtype of the totals: a dtype, a function of the variable that returns one, or None
            for the variable's own.
    """

    def __init__(self, count: Any, method: Any, dtype: Any = None) -> None:
        self._method = GradientAccumulationReductionMethod.parse(method)
        self._dtype = dtype
        self.count = count
        self._held: dict[int, ReplicaState] = {}
        self._known: list[Any] = []  # keeps the variables whose ids are keys

    def add(self, grads_and_vars: Sequence[tuple[Any, Any]], index: Any) -> list[Any]:
        """Operations that add a micro-batch's gradients; ``index`` is its number in the update."""
        operations = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            dense = tf.convert_to_tensor(gradient)
            # A class is a dtype of numpy.
            is_asked = callable(self._dtype) and not isinstance(self._dtype, type)
            dtype = self._dtype(variable) if is_asked else self._dtype
            if id(variable) not in self._held:
                self._known.append(variable)
                kind = dtype or tf.as_dtype(variable.dtype).base_dtype
                self._held[id(variable)] = ReplicaState(
                    partial(tf.zeros, variable.shape, kind),
                    f"{variable.name.split(':')[0]}/accumulated",
                )
            held = self._held[id(variable)]
            operations.append(self._added(held, tf.cast(dense, held.dtype), index))
        return operations

    def _added(self, held: Any, gradient: Any, index: Any) -> Any:
        if self._method is GradientAccumulationReductionMethod.SUM:
            return held.assign_add(gradient, read_value=False)
        if self._method is GradientAccumulationReductionMethod.MEAN:
            return held.assign_add(gradient / tf.cast(self.count, held.dtype), read_value=False)
        before = tf.cast(index, held.dtype)
        share = 1 / (before + 1)  # factors, and not divisors, as the original rounds
        mean = held.read_value() * (before * share) + gradient * share
        return held.assign(mean, read_value=False)

    def totals(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The accumulated gradients, in place of the gradients that were handed to `add`."""
        return [
            (None if gradient is None else self._total(variable), variable)
            for gradient, variable in grads_and_vars
        ]

    def _total(self, variable: Any) -> Any:
        return self._held[id(variable)].read_value()

    def clear(self) -> list[Any]:
        """The operations that set all totals to zero."""
        return [one.assign(tf.zeros_like(one), read_value=False) for one in self._held.values()]


def gradients_for(optimizer: Any, totals: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The totals in the dtypes that an optimizer takes.

    The optimizers of TensorFlow and Keras update a variable by a gradient of its own dtype. A
    program's optimizer gets the dtype in which gradients were accumulated, as published: its values
    may be out of the range of the variable's dtype.

    Args:
        optimizer: The optimizer; of optimizers around others, the innermost one decides.
        totals: Accumulated gradients and their variables.
    """
    while hasattr(optimizer, "_opt"):
        optimizer = optimizer._opt  # noqa: SLF001 - of `IpuOptimizer` and Keras' wrappers
    if type(optimizer).__module__.partition(".")[0] not in ("keras", "popdist_tf", "tensorflow"):
        return list(totals)
    return [
        # The dtype of a variable is a string in Keras 3.
        (None if one is None else tf.cast(one, tf.as_dtype(variable.dtype).base_dtype), variable)
        for one, variable in totals
    ]


class _Update:
    """The update of one replica, after its last micro-batch is accumulated."""

    def __init__(
        self,
        accumulator: GradientAccumulator,
        grads_and_vars: Sequence[tuple[Any, Any]],
        apply: Callable[[list[tuple[Any, Any]]], Any],
    ) -> None:
        self.accumulator = accumulator
        self.grads_and_vars = grads_and_vars
        self.apply = apply

    def run(self) -> Any:
        train = self.apply(self.accumulator.totals(self.grads_and_vars))
        with tf.control_dependencies([train]), tf.control_dependencies(self.accumulator.clear()):
            return tf.constant(value=True)


def accumulate(
    accumulator: GradientAccumulator,
    grads_and_vars: Sequence[tuple[Any, Any]],
    index: Any,
    apply: Callable[[list[tuple[Any, Any]]], Any],
) -> Any:
    """Adds the gradients of a micro-batch; with the last one of an update, applies the total.

    Args:
        accumulator: This replica's accumulator.
        grads_and_vars: Gradients of the micro-batch and their variables.
        index: Number of earlier micro-batches, over all updates; an integer scalar, the same on
            every replica.
        apply: Called with the totals and their variables; returns the training operation.
    """
    added = accumulator.add(grads_and_vars, index % accumulator.count)

    # All replicas take the branch together. In a branch of its own, a replica that reduces would
    # wait for replicas that have not reached the branch.
    def update(strategy: Any, is_last: Any, one: Any) -> Any:
        return tf.cond(
            _all_of(is_last),  # each replica's says that its own micro-batch is added
            lambda: _all_of(strategy.extended.call_for_each_replica(_Update.run, args=(one,))),
            lambda: tf.constant(value=True),
        )

    with tf.control_dependencies(added):
        # `==` compares objects in TensorFlow 1.
        is_last = tf.equal((index + 1) % accumulator.count, 0)
    replica = tf.distribute.get_replica_context()
    guard = getattr(replica.strategy.extended, "guard", None)
    if guard is not None:
        guard.note_accumulation(accumulator.count)
    one = _Update(accumulator, grads_and_vars, apply)
    return tf.group(replica.merge_call(update, args=(is_last, one)))


def _all_of(values: Any) -> Any:
    return tf.reduce_all(tf.stack(getattr(values, "values", (values,))))
