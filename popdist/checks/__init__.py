"""What every adapter checks while it trains: the declared checks, and the judgements they share."""

from popdist.checks.declared import Check, is_enabled
from popdist.checks.parts import UPDATES, Finding, Products, judge

__all__ = ["UPDATES", "Check", "Finding", "Products", "is_enabled", "judge"]
