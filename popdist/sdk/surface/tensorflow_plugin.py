"""The names of ``tensorflow.compiler.plugin``: operations below those of the public modules."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import refused, surface, with_offered

SURFACE = surface(
    "tensorflow.compiler.plugin",
    "popdist_tf.ipu.plugin",
    *with_offered(
        "popdist_tf.ipu.tree",
        "plugin",
        refused(
            "It drives the hardware.",
            "poplar.driver",
            "poplar.tests",
            "poplar.tools",
            instead="nothing, on a host",
        ),
    ),
)
