"""What ``ipu_tensorflow_addons`` publishes: layers and optimizers for TensorFlow 1 and 2."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import refused, surface, with_offered, without_effect

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
            instead="tf.keras.layers.MultiHeadAttention",
        ),
    ),
)
