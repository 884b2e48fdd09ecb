"""What ``ipu_tensorflow_addons`` publishes: layers and optimizers for TensorFlow 1 and 2."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import refused, surface, without_effect, works

_RECURRENT = ("PopnnAUGRU", "PopnnDynamicGRU", "PopnnDynamicLSTM", "PopnnGRU", "PopnnLSTM")
_LAYERS = (
    "CTCInferenceLayer",
    "CTCLoss",
    "CTCPredictionsLayer",
    "Dropout",
    "Embedding",
    "GRU",
    "GroupNorm",
    "GroupNormalization",
    "InstanceNorm",
    "InstanceNormalization",
    "LSTM",
    "LayerNorm",
    "LayerNormalization",
    "PopnnGRU",
    "PopnnLSTM",
    "SerialDense",
)
_IN_PLACE = ("AssumeEqualAcrossReplicas", "RecomputationCheckpoint")
_OPTIMIZERS = ("AdamIpuOptimizer", "LAMBIpuOptimizer", "SGDIpuOptimizer")

SURFACE = surface(
    "ipu_tensorflow_addons",
    "popdist_tf.ipu.addons",
    works("keras", "keras.layers", "keras.optimizers", "layers"),
    works("v1", "v1.keras", "v1.keras.layers", "v1.layers"),
    works(*(f"{module}.{name}" for module in ("layers", "v1.layers") for name in _RECURRENT)),
    works(*(f"{module}.{n}" for module in ("keras.layers", "v1.keras.layers") for n in _LAYERS)),
    works(*(f"keras.optimizers.{name}" for name in _OPTIMIZERS)),
    without_effect(
        "The layer returns its inputs.",
        *(f"{module}.{n}" for module in ("keras.layers", "v1.keras.layers") for n in _IN_PLACE),
    ),
    refused(
        "It packs sequences for the original hardware.",
        "keras.layers.EffectiveTransformer",
        instead="tf.keras.layers.MultiHeadAttention",
    ),
)
