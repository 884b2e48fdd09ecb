"""Embeddings that a host keeps and updates by gradient descent of their own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist.sdk.surface import missing
from popdist_tf.errors import LayerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PARTITIONS = ("TOKEN", "ENCODING")
_SPEC = "ops.embedding_ops.HostEmbeddingOptimizerSpec"


class HostEmbeddingOptimizerSpec:
    """How a host embedding is updated: by gradient descent.

    Args:
        learning_rate: A number; with 0, the embedding is not trained.
        optimizer_name: Accepted as published, without effect.
    """

    def __init__(self, learning_rate: Any, optimizer_name: str | None = None) -> None:
        del optimizer_name
        self._learning_rate = learning_rate

    def get_learning_rate(self) -> Any:
        """The learning rate."""
        return self._learning_rate

    def create_slot_variables(self, embedding_tensor: Any, name: str) -> list[Any]:
        """The slots of the optimizer: gradient descent has none.

        Args:
            embedding_tensor: The table.
            name: The name of the embedding.
        """
        del embedding_tensor, name
        return []

    create_lookup_instruction = missing("popdist_tf.ipu", f"{_SPEC}.create_lookup_instruction")
    create_register_instruction = missing("popdist_tf.ipu", f"{_SPEC}.create_register_instruction")
    create_deregister_instruction = missing(
        "popdist_tf.ipu", f"{_SPEC}.create_deregister_instruction"
    )


class HostEmbedding:
    """A table of rows, which is updated in the backward pass of each lookup.

    Args:
        name: The name of the embedding.
        embedding_tensor: The table: a variable that no optimizer trains.
        partition_strategy: Accepted as published, without effect on a host.
        optimizer_spec: How the table is updated; None for a table that is not trained.

    Raises:
        ValueError: An argument has another type, or names no partition.
    """

    def __init__(
        self,
        name: str,
        embedding_tensor: Any,
        partition_strategy: str = "TOKEN",
        optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    ) -> None:
        if not tf.is_tensor(embedding_tensor):
            raise ValueError("HostEmbedding embedding_tensor is not a tensorflow tensor")
        if not isinstance(optimizer_spec, HostEmbeddingOptimizerSpec | None):
            raise ValueError(  # noqa: TRY004 - published
                "HostEmbedding optimizer_spec is not a HostEmbeddingOptimizerSpec or None"
            )
        if partition_strategy not in _PARTITIONS:
            raise ValueError(f"Unknown partition strategy {partition_strategy}")
        self._table = embedding_tensor
        self._rate = optimizer_spec.get_learning_rate() if optimizer_spec else 0
        self._is_trained = not isinstance(self._rate, int | float) or bool(self._rate)
        if self._is_trained:
            # What is trained asks for gradients of trainable variables: this one stays as it is.
            zero = tf.zeros([], embedding_tensor.dtype)
            self._asking = tf.Variable(zero, name=f"{name}/__dummy")

    def get_embedding_tensor(self) -> Any:
        """The table."""
        return self._table

    @contextmanager
    def register(self, session: Any = None) -> Iterator[HostEmbedding]:
        """The context in which lookups run; without effect on a host, whose table it is.

        Args:
            session: The session that runs them, where a graph is built.

        Raises:
            ValueError: A graph is built, and there is no session.
        """
        if session is None and not tf.executing_eagerly():
            raise ValueError(
                "HostEmbedding.register requires a session when eager execution is disabled."
            )
        yield self

    def lookup(self, indices: Any, clip_indices: bool = True) -> Any:
        """The rows of some indices. Their gradient updates the table.

        Args:
            indices: Integers of any shape.
            clip_indices: Whether indices outside of the table mean its nearest row.

        Returns:
            Shape ``(*indices.shape, columns)``.
        """
        if clip_indices:
            indices = tf.clip_by_value(indices, 0, self._table.shape[0] - 1)
        if not self._is_trained:
            return tf.gather(self._table, indices)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def rows(asking: Any) -> Any:
            def updated(upstream: Any) -> Any:
                with tf.control_dependencies([self._update(indices, upstream)]):
                    return tf.zeros_like(asking)

            return tf.gather(self._table, indices), updated

        return rows(tf.convert_to_tensor(self._asking))

    def _update(self, indices: Any, upstream: Any) -> Any:
        """Subtracts the gradients of all replicas, on all replicas."""
        table = self._table
        columns = table.shape[1]
        slices = tf.IndexedSlices(
            self._rate * tf.reshape(upstream, [-1, columns]), tf.reshape(indices, [-1]), table.shape
        )
        replica = tf.distribute.get_replica_context()
        if replica.num_replicas_in_sync == 1:
            return table.scatter_sub(slices)

        def everywhere(strategy: Any, change: Any) -> Any:
            # Not what an optimizer reduces by, which a strategy may leave to the program.
            reduce = getattr(strategy.extended, "reduce_over_replicas", None)
            is_sum = tf.distribute.ReduceOp.SUM
            total = reduce(is_sum, change) if reduce else strategy.reduce(is_sum, change, axis=None)
            return strategy.extended.update(
                table, lambda own, value: own.assign_sub(value), args=(total,)
            )

        return replica.merge_call(everywhere, args=(tf.convert_to_tensor(slices),))


def create_host_embedding(
    name: str,
    shape: Sequence[int],
    dtype: Any,
    partition_strategy: str = "TOKEN",
    optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    initializer: Any = None,
) -> HostEmbedding:
    """Makes a host embedding.

    Args:
        name: Its name.
        shape: Rows and columns.
        dtype: Of the table.
        partition_strategy: Accepted as published, without effect on a host.
        optimizer_spec: How the table is updated; None for one that is not trained.
        initializer: Of the table: a tensor, or a function of shape and dtype; None for zeros.

    Raises:
        LayerError: The shape has not two dimensions.
    """
    if len(shape) != 2:  # noqa: PLR2004 - rows and columns
        raise LayerError("PD434", "a host embedding has two dimensions", value=list(shape))
    start = tf.zeros_initializer() if initializer is None else initializer
    value = (lambda: start(shape, dtype=dtype)) if callable(start) else start
    table = tf.Variable(value, trainable=False, name=name, dtype=dtype, shape=shape)
    return HostEmbedding(name, table, partition_strategy, optimizer_spec)
