"""Errors of the TensorFlow adapter. Each is also of the type that the published modules raise."""

from __future__ import annotations

from popdist.errors import PopdistError


class CollectiveError(PopdistError, ValueError):
    """A value cannot be reduced, gathered or broadcast over the instances."""


class StrategyError(PopdistError, ValueError):
    """A distribution strategy was created or used in a way it cannot honour."""


class TooLateError(PopdistError, RuntimeError):
    """TensorFlow has started already, and a setting can no longer take effect."""
