"""The TensorFlow adapter of popdist."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`shard`, which loads TensorFlow."""
    if name == "shard":
        from popdist_tf.data_shards import shard

        return shard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
