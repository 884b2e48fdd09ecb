"""Checks that all ranks build the same program and hold the same weights.

Before values are exchanged, ranks compare eagerly what they are about to do
(`popdist.agreement`). Weights are compared within a graph as well, because a step may be one of
many in a compiled loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow.compat.v2 as tf
from tensorflow.python.eager import context

from popdist import agreement
from popdist.agreement import ABSENT, Disagreement, disagreements
from popdist.checks import is_enabled
from popdist_tf.checks import STATE
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
_LONGEST = 4096  # bytes of a text
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
    if names and is_enabled(STATE):
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


def text_of_root(collectives: HostCollectives, text: str) -> str:
    """The text of the first rank, on every rank; every rank must call it.

    Args:
        collectives: The job's collectives.
        text: This rank's, of at most 4,096 bytes.
    """
    letters = np.frombuffer(text.encode().ljust(_LONGEST, b"\0"), dtype=np.uint8)
    with tf.init_scope(), context.eager_mode():
        received = collectives.broadcast(tf.constant(letters)).numpy()
    return bytes(received).rstrip(b"\0").decode()


def digests(values: Sequence[Any]) -> Any:
    """The digests of several tensors or variables, as an int64 vector.

    They are computed by one operation, in Python: TensorFlow takes longer to build the operations
    for a sum of bytes than to run them, and they are run in a few steps only.

    Args:
        values: At least one.
    """
    with tf.device("CPU:0"):  # of values on several devices
        held = [tf.convert_to_tensor(value) for value in values]
        found = tf.numpy_function(_numbers, held, tf.int64, stateful=False)
    found.set_shape([len(held)])
    return found


def _numbers(*arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.array([int(agreement.digest(_bytes_of(one)), 16) for one in arrays], np.uint64).view(
        np.int64
    )


def _bytes_of(array: np.ndarray[Any, Any]) -> Any:
    array = np.asarray(array)
    if array.dtype == object:  # texts
        return b"".join(len(text).to_bytes(8, "big") + text for text in array.flat)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
