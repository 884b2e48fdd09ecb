"""Writes ONNX models operator by operator, with the names of PopART's builder."""

from popdist_onnx.builder.builder import Builder
from popdist_onnx.builder.graph_writer import (
    defaultAiGraphcoreOpset,
    defaultAiOnnxMlOpset,
    defaultAiOnnxOpset,
)
from popdist_onnx.builder.naming import DebugContext
from popdist_onnx.builder.onnx_methods import (
    OpDefinition,
    OperatorIdentifier,
    getSupportedOperations,
    getSupportedOperationsDefinition,
    packageHash,
    versionNumber,
    versionString,
)

__all__ = [
    "Builder",
    "DebugContext",
    "OpDefinition",
    "OperatorIdentifier",
    "defaultAiGraphcoreOpset",
    "defaultAiOnnxMlOpset",
    "defaultAiOnnxOpset",
    "getSupportedOperations",
    "getSupportedOperationsDefinition",
    "packageHash",
    "versionNumber",
    "versionString",
]
