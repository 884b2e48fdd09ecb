"""``ipu.keras.layers``: layers under their published names."""

from popdist_tf.keras.layers import (
    GRU,
    LSTM,
    Dropout,
    Embedding,
    GroupNorm,
    GroupNormalization,
    InstanceNorm,
    InstanceNormalization,
    LayerNorm,
    LayerNormalization,
    PopnnGRU,
    PopnnLSTM,
    refused,
)

__all__ = [
    "GRU",
    "LSTM",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "GroupNormalization",
    "InstanceNorm",
    "InstanceNormalization",
    "LayerNorm",
    "LayerNormalization",
    "PopnnGRU",
    "PopnnLSTM",
]


def __getattr__(name: str) -> None:
    refused(name)
