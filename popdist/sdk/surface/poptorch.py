"""What ``poptorch`` publishes."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import surface

SURFACE = surface("poptorch", "popdist_torch")
