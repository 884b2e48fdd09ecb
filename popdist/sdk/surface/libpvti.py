"""The published names of ``libpvti`` that programs of the SDK use."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import surface, without_effect

SURFACE = surface(
    "libpvti",
    "popdist.sdk.pvti",
    without_effect(
        "Nothing collects the annotations, as in the SDK while `PVTI_OPTIONS` is not set.",
        "Channel",
        "Graph",
        "Graph.addSeries",
        "HeatmapDouble",
        "HeatmapDouble.add",
        "Tracepoint",
        "Tracepoint.event",
        "createTraceChannel",
        "instrument",
        "instrument_fn",
    ),
)
