"""``ipu.ops``: operations of device code."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.ipu.ops import (
    cross_replica_ops,
    embedding_ops,
    functional_ops,
    internal_ops,
    nn_ops,
    normalization_ops,
    pipelining_ops,
    replication_ops,
)

__all__ = [
    "cross_replica_ops",
    "embedding_ops",
    "functional_ops",
    "internal_ops",
    "nn_ops",
    "normalization_ops",
    "pipelining_ops",
    "replication_ops",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
