"""What ``popart`` publishes."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import surface

SURFACE = surface("popart", "popdist_onnx")
