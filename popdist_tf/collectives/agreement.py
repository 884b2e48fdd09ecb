"""Checks that all ranks build the same program and hold the same weights.

Before values are exchanged, ranks compare eagerly what they are about to do
(`popdist.agreement`). Weights are compared within a graph as well, because a step may be one of
many in a compiled loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from popdist import agreement
from popdist.agreement import ABSENT, Disagreement, disagreements
from popdist_tf.errors import AgreementError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_tf.collectives.host import HostCollectives


class Rows(Protocol):
    """What gathers a row of every instance."""

    @property
    def size(self) -> int:
        """How many instances there are."""

    @property
    def rank(self) -> int:
        """The place of this one among them."""

    def allgather(self, tensor: Any, name: str | None = None) -> Any:
        """The instances' rows, in rank order."""


_NAMED = 5
STATEMENT = "statement"
DIVERGENCE_HINT = (
    "broadcast values that one instance alone has loaded or set "
    "(popdist_tf.keras.broadcast_variables), or load them on all instances"
)


_ACCEPTED = "the same variables and data set sizes, in the same order, on every instance"
_HINT = (
    "create models, optimizers and data sets alike on all instances; what only one of them needs "
    "goes outside of the strategy's scope"
)


def agree(
    collectives: HostCollectives, statement: str, accepted: str = _ACCEPTED, hint: str = _HINT
) -> None:
    """Checks that every rank passes the same statement; every rank must call it.

    Raises:
        AgreementError: Statements differ; raised on all ranks, with ``accepted`` and ``hint``.
    """
    compared(collectives, statement, {}, accepted, hint)


def agree_on_weights(
    collectives: HostCollectives, weights: Sequence[tuple[str, Any]], when: str
) -> None:
    """Checks that every rank holds bit-identical weights; every rank must call it.

    Only digests are sent.

    Args:
        collectives: The job's collectives.
        weights: Names and values of the variables, in the same order on every rank. The value of a
            variable that this rank has deleted is None; other ranks may delete it at another time.
        when: At which point, in words.

    Raises:
        AgreementError: Weights differ; raised on all ranks, and names those that do.
    """
    # By number: names may repeat, and Keras counts them up on an instance that builds more models.
    held = {
        f"{index:06}": agreement.digest(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        for index, (_, value) in enumerate(weights)
        if value is not None and collectives.horovod is not None
    }
    found = compared(collectives, f"{len(weights)} weights {when}", held)
    names = [weights[int(row.name)][0] for row in found if ABSENT not in row.values]
    if names:
        raise AgreementError(
            "PD007",
            f"the instances hold different weights {when}: they would train different models",
            value=f"{len(names)} of {len(weights)} variables differ: {', '.join(names[:_NAMED])}",
            hint=DIVERGENCE_HINT,
        )


def compared(
    collectives: HostCollectives,
    statement: str,
    facts: Mapping[str, str],
    accepted: str = _ACCEPTED,
    hint: str = _HINT,
) -> list[Disagreement]:
    """Compares facts with those of all ranks; every rank must call it.

    Args:
        collectives: The job's collectives.
        statement: What this rank is about to do, in words.
        facts: Names and values.
        accepted: Which statements are accepted, for the error.
        hint: What to do about different statements.

    Returns:
        The facts on which ranks differ; the same list on all of them.

    Raises:
        AgreementError: Statements differ; raised on all ranks.
    """
    found = differing(collectives, {STATEMENT: statement, **facts})
    for row in found:
        if row.name == STATEMENT:
            raise AgreementError(
                "PD007",
                "the instances disagree about what they build or run",
                value=row.says,
                accepted=accepted,
                hint=hint,
            )
    return found


def differing(collectives: HostCollectives, facts: Mapping[str, str]) -> list[Disagreement]:
    """The facts on which ranks differ, for callers that name the difference by themselves.

    Args:
        collectives: The job's collectives.
        facts: Names and values.
    """
    if collectives.horovod is None:
        return []

    def gather(content: bytes) -> list[bytes]:
        # Eagerly also while a graph is being built: a graph's values exist only in a session.
        with tf.init_scope(), context.eager_mode():
            row = tf.constant(np.frombuffer(content, np.uint8)[np.newaxis])
            return [bytes(one) for one in collectives.allgather(row).numpy()]

    return disagreements(facts, gather)


# Comparing weights inside of a graph, by one digest for each weight.
#
# Reducing gradients keeps equal weights equal, and different weights different. So nothing else
# would reveal a difference.


_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # spreads positions over 64 bits


def assert_equal_weights(
    collectives: Rows,
    weights: Sequence[tuple[str, Any]],
    message: str,
    label: str | None = None,
) -> Any:
    """A boolean scalar that is true, or fails with ``message`` when weights differ.

    Every instance must run it, with the same weights in the same order. The value of a weight may
    be a list, one value for each local replica. The names of the weights that differ follow the
    message. ``label`` pairs the instances' calls where their graphs may differ; None pairs them by
    the order of the collectives in the graph.
    """
    names = different_weights(collectives, weights, label)
    equal = tf.equal(tf.size(names), 0)
    check = tf.debugging.Assert(equal, [message, names], 5)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(equal)


def different_weights(
    collectives: Rows, weights: Sequence[tuple[str, Any]], label: str | None = None
) -> Any:
    """The names of the weights that differ between instances or replicas, as a string vector."""
    own: list[Any] = []
    names: list[str] = []
    first: list[int] = []
    for name, value in weights:
        parts = value if isinstance(value, (list, tuple)) else [value]
        first += [len(own)] * len(parts)
        own += parts
        names += [name] * len(parts)
    rows = collectives.allgather(digests(own)[tf.newaxis], label)
    differ = tf.reduce_any(tf.not_equal(rows, tf.gather(rows[0], first)), axis=0)
    return tf.unique(tf.boolean_mask(tf.constant(names), differ))[0]


def digest(weight: Any) -> Any:
    """An int64 scalar that changes with any bit of a tensor or variable."""
    bits = _bytes_of(weight)
    positions = tf.range(1, tf.size(bits, tf.int64) + 1, dtype=tf.int64)
    return tf.reduce_sum((tf.cast(bits, tf.int64) + 1) * (positions * _ODD + 1))


def digests(weights: Sequence[Any]) -> Any:
    """The digests of several weights, as an int64 vector.

    Many small weights share the operations of one digest: TensorFlow takes longer to build an
    operation than to sum the bytes of a small weight.

    Args:
        weights: Tensors or variables, at least one.
    """
    groups: list[list[Any]] = [[]]
    free = _TOGETHER
    for weight in map(tf.convert_to_tensor, weights):
        size = _size_of(weight)
        if size > free:
            groups.append([])
            free = _TOGETHER
        free -= min(size, free)
        groups[-1].append(weight)
    parts = [_digests_of_group(group) for group in groups if group]
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


_TOGETHER = 1 << 20  # bytes; the bytes of larger weights would take too much memory at once


def _size_of(weight: Any) -> int:
    """The bytes of a weight; many for one whose shape is not known while a graph is built."""
    count: int | None = weight.shape.num_elements()
    return _TOGETHER + 1 if count is None else count * int(weight.dtype.size)


def _digests_of_group(weights: Sequence[Any]) -> Any:
    if len(weights) == 1:
        return digest(weights[0])[tf.newaxis]
    sizes = [_size_of(weight) for weight in weights]
    starts = np.cumsum([0, *sizes[:-1]])
    with tf.device("CPU:0"):  # of weights on several devices
        bits = tf.concat([_bytes_of(weight) for weight in weights], 0)
        place = tf.range(1, sum(sizes) + 1, dtype=tf.int64)
        number = tf.searchsorted(tf.constant(starts[1:] + 1), place, side="right")
        positions = place - tf.gather(tf.constant(starts), number)
        rated = (tf.cast(bits, tf.int64) + 1) * (positions * _ODD + 1)
        return tf.math.unsorted_segment_sum(rated, number, len(sizes))


def _bytes_of(weight: Any) -> Any:
    return tf.reshape(tf.bitcast(tf.convert_to_tensor(weight), tf.uint8), [-1])
