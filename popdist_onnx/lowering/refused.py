"""Operators of ``ai.graphcore`` that cannot be expressed for a host, why, and what to use."""

from __future__ import annotations

REFUSED: dict[str, tuple[str, str]] = {
    "Abort": (
        "an ONNX graph cannot stop the program that runs it",
        "anchor the condition and raise in the program after run()",
    ),
    "CtcBeamSearchDecoder": (
        "ONNX has no beam search",
        "anchor the log probabilities and decode them in the program",
    ),
    "PackedDataBlock": (
        "it schedules a sub-graph over packed sequences on an IPU",
        "pad the sequences to one length, and mask what was added",
    ),
}
"""The reason and the replacement by operator."""
