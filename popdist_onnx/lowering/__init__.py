"""Rewrites operators of ``ai.graphcore`` into operators that ONNX Runtime has."""

from popdist_onnx.lowering.apply import lower
from popdist_onnx.lowering.registry import DOMAIN, OPERATORS

__all__ = ["DOMAIN", "OPERATORS", "lower"]
