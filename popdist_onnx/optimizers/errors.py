"""The errors of optimizers and of the passes that use them."""

from __future__ import annotations

from popdist_onnx.errors import ArgumentError, ValueRangeError, popart_exception


class OptimizerSettingError(ArgumentError):
    """A setting of an optimizer is unknown, or not a pair of value and constness."""


class OptimizerValueError(ValueRangeError):
    """A setting of an optimizer is out of range, or contradicts another."""


class OptimizerReplacementError(popart_exception, ValueError):
    """A new optimizer needs another graph than the session's."""


class UpdateError(popart_exception, ValueError):
    """A model cannot be given the updates of an optimizer."""
