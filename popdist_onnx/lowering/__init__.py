"""Rewrites operators of ``ai.graphcore`` into operators that ONNX Runtime has."""

from popdist_onnx.lowering import apply, ctc, elementwise, indices, layers, quantize, shapes
from popdist_onnx.lowering.apply import lower, register_inference
from popdist_onnx.lowering.registry import DOMAIN, LOWERINGS

# The imports above fill the registry.
register_inference()

__all__ = [
    "DOMAIN",
    "LOWERINGS",
    "apply",
    "ctc",
    "elementwise",
    "indices",
    "layers",
    "lower",
    "quantize",
    "shapes",
]
