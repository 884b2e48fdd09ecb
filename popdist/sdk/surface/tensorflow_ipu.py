"""What ``tensorflow.python.ipu`` publishes."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import surface

SURFACE = surface("tensorflow.python.ipu", "popdist_tf.ipu")
