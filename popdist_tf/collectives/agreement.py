"""Do all ranks build the same thing? Asked before the values themselves travel.

Every question has the same form, whatever it is about: a digest of its text, gathered eagerly. So a
rank that creates one variable more than the others asks about it while they ask about their next
step, the digests differ, and all of them learn who is where, instead of waiting for each other.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from popdist_tf.errors import AgreementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_tf.collectives.host import HostCollectives


_SHOWN = 200
_NAMED = 5
_DROPPED = -1
DIVERGENCE_HINT = (
    "broadcast values that one instance alone has loaded or set "
    "(popdist_tf.keras.broadcast_variables), or load them on all instances"
)


def agree(collectives: HostCollectives, statement: str) -> None:
    """Checks that every rank states the same; every rank must call it.

    Args:
        collectives: The job's collectives.
        statement: What this rank is about to do, in words.

    Raises:
        AgreementError: Ranks state different things; raised on all of them.
    """
    if collectives.horovod is None:
        return
    digest = hashlib.sha256(statement.encode()).digest()
    digests = _gather(collectives, np.frombuffer(digest, dtype=np.int64))
    if (digests != digests[0]).any():
        text = statement[:_SHOWN].ljust(_SHOWN).encode()[:_SHOWN]
        rows = _gather(collectives, np.frombuffer(text, dtype=np.uint8))
        said = [bytes(row).decode(errors="replace").strip() for row in rows]
        raise AgreementError(
            "PD413",
            "the instances disagree about what they build or run",
            value="; ".join(f"instance {rank}: {text}" for rank, text in enumerate(said)),
            accepted="the same variables and data set sizes, in the same order, on every instance",
            hint="create models, optimizers and data sets alike on all instances; what only one "
            "of them needs goes outside of the strategy's scope",
        )


def agree_on_weights(
    collectives: HostCollectives, weights: Sequence[tuple[str, Any]], when: str
) -> None:
    """Checks that every rank holds the same weights, bit for bit; every rank must call it.

    Only digests travel.

    Args:
        collectives: The job's collectives.
        weights: Names and values of the variables, in the same order on every rank; None for the
            value of one that this rank has dropped, which may happen at another time than there.
        when: At which point, in words.

    Raises:
        AgreementError: Weights differ; raised on all ranks, and names those that do.
    """
    if collectives.horovod is None:
        return
    agree(collectives, f"{len(weights)} weights {when}")
    digests = _gather(collectives, np.array([_digest(value) for _, value in weights], np.int64))
    held = (digests != _DROPPED).all(axis=0)
    differ = held & (digests != digests[0]).any(axis=0)
    if differ.any():
        names = [name for (name, _), one in zip(weights, differ, strict=True) if one]
        raise AgreementError(
            "PD413",
            f"the instances hold different weights {when}: they would train different models",
            value=f"{len(names)} of {len(weights)} variables differ: {', '.join(names[:_NAMED])}",
            hint=DIVERGENCE_HINT,
        )


def _digest(value: Any) -> int:
    return _DROPPED if value is None else zlib.crc32(np.ascontiguousarray(value).data)


def _gather(collectives: HostCollectives, row: Any) -> Any:
    # Also while a graph is being built, where nothing could be answered before a session runs.
    with tf.init_scope(), context.eager_mode():
        return np.asarray(collectives.allgather(tf.constant(row[np.newaxis])).numpy())


# Comparing weights inside of a graph: a number for each, compared over the instances.
#
# Gradients that are reduced keep equal weights equal, and different weights different: nothing else
# would show it. The comparison is part of a step, because a step may be one of many in a compiled
# loop.


_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # spreads positions over 64 bits


def assert_equal_weights(
    collectives: HostCollectives,
    weights: Sequence[tuple[str, Any]],
    message: str,
    label: str | None = None,
) -> Any:
    """Checks that all instances hold the same weights, bit for bit; every instance must run it.

    Args:
        collectives: The job's collectives.
        weights: Names and values, the same weights in the same order on every instance.
        message: What the error says; the names of the weights that differ follow.
        label: By which the instances' calls find each other where their graphs may differ; None
            for the order of the collectives in the graph.

    Returns:
        A boolean scalar that is true, or fails with ``message`` when it is computed.
    """
    own = tf.stack([digest(value) for _, value in weights])
    rows = collectives.allgather(own[tf.newaxis], label)
    differ = tf.reduce_any(rows != rows[0], axis=0)
    names = tf.constant([name for name, _ in weights])
    equal = tf.logical_not(tf.reduce_any(differ))
    check = tf.debugging.Assert(equal, [message, tf.boolean_mask(names, differ)], 5)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(equal)


def digest(weight: Any) -> Any:
    """A number that changes with any bit of a tensor.

    Args:
        weight: A tensor or variable.

    Returns:
        An int64 scalar.
    """
    bits = tf.reshape(tf.bitcast(tf.convert_to_tensor(weight), tf.uint8), [-1])
    positions = tf.range(1, tf.size(bits, tf.int64) + 1, dtype=tf.int64)
    return tf.reduce_sum((tf.cast(bits, tf.int64) + 1) * (positions * _ODD + 1))
