"""Writes ONNX models operator by operator, with the names of PopART's builder."""

# Importing control_flow makes inference know loops.
from popdist_onnx.builder import control_flow
from popdist_onnx.builder.builder import Builder
from popdist_onnx.builder.naming import DebugContext
from popdist_onnx.builder.supported import OperatorIdentifier, getSupportedOperations

__all__ = [
    "Builder",
    "DebugContext",
    "OperatorIdentifier",
    "control_flow",
    "getSupportedOperations",
]
