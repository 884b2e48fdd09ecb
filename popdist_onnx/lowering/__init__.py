"""Rewrites operators of ``ai.graphcore`` into operators that ONNX Runtime has.

`registry` says which file has the lowering of an operator, and `apply` is the pass.
"""

from popdist_onnx.lowering.apply import lower
from popdist_onnx.lowering.registry import DOMAIN, OPERATORS

__all__ = ["DOMAIN", "OPERATORS", "lower"]
