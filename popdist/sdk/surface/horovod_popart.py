"""What ``horovod.popart`` publishes."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import surface

SURFACE = surface("horovod.popart", "popdist_onnx.horovod")
