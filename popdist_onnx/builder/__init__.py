"""Writes ONNX models operator by operator, with the names of PopART's builder."""

from popdist_onnx.builder.builder import Builder
from popdist_onnx.builder.naming import DebugContext
from popdist_onnx.builder.onnx_methods import OperatorIdentifier, getSupportedOperations

__all__ = [
    "Builder",
    "DebugContext",
    "OperatorIdentifier",
    "getSupportedOperations",
]
