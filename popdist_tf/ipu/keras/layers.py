"""``ipu.keras.layers``: layers under their published names."""

from typing import Any

from popdist.sdk.surface import missing
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


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
