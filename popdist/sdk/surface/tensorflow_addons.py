"""What ``ipu_tensorflow_addons`` publishes: layers and optimizers for TensorFlow 1 and 2."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import (
    refused,
    surface,
    with_offered,
    without_effect,
    works,
)

_IN_PLACE = ("AssumeEqualAcrossReplicas", "RecomputationCheckpoint")

SURFACE = surface(
    "ipu_tensorflow_addons",
    "popdist_tf.ipu.addons",
    *with_offered(
        "popdist_tf.ipu.tree",
        "addons",
        without_effect(
            "The layer returns its inputs.",
            *(f"{module}.{n}" for module in ("keras.layers", "v1.keras.layers") for n in _IN_PLACE),
        ),
        refused(
            "It packs sequences for the original hardware.",
            "keras.layers.EffectiveTransformer",
            "keras.layers.effective_transformer",
            instead="tf.keras.layers.MultiHeadAttention",
        ),
        refused(
            "It measures programs of Poplar to place their layers.",
            "keras.experimental",
            instead="set_pipeline_stage_assignment of a model, where stages matter",
        ),
        refused(
            "A host has no such numbers of 8 bits.",
            "keras.layers.dense.Dense",
            "keras.layers.f8_convert",
            instead="tf.keras.layers.Dense, with tf.cast to bfloat16 or float16",
        ),
        refused(
            "It is what layers of the original have in common.",
            "keras.layers.ipu_layer",
            instead="tf.keras.layers.Layer",
        ),
        works(
            *(f"keras.layers.rnn.{name}" for name in ("PopnnGRU", "PopnnLSTM")),
            *(
                f"v1.layers.rnn_ops.Popnn{name}"
                for name in ("AUGRU", "DynamicGRU", "DynamicLSTM", "GRU", "LSTM")
            ),
            note="The sizes and parts from which the original builds its kernel are left out.",
        ),
    ),
)
