"""`Patterns`: which graph patterns PopART applies; ONNX Runtime optimises by rules of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_onnx.errors import ArgumentError
from popdist_onnx.types.enums import PatternsLevel

if TYPE_CHECKING:
    from collections.abc import Iterable


class Patterns:
    """A level and switches by name, kept as the program sets them.

    ``patterns.InPlace = False`` and ``patterns.enablePattern("InPlace", False)`` mean the same.

    Args:
        level: The set to start from, or the names of the patterns to apply.
    """

    _level: PatternsLevel
    _switches: dict[str, bool]
    _runtime_asserts: bool

    def __init__(self, level: PatternsLevel | Iterable[str] = PatternsLevel.Default) -> None:
        names: list[str] = []
        if not isinstance(level, PatternsLevel):
            names, level = list(level), PatternsLevel.NoPatterns
        self.__dict__.update(
            _level=level, _switches=dict.fromkeys(names, True), _runtime_asserts=True
        )

    def enablePattern(self, name: str, value: bool) -> Patterns:
        """Switches one pattern.

        Args:
            name: The pattern.
            value: Whether it is applied.

        Returns:
            These patterns.

        Raises:
            ArgumentError: The value is no bool.
        """
        if not isinstance(value, bool):
            raise ArgumentError("PD506", f"pattern {name} is switched by a bool", value=value)
        self._switches[name] = value
        return self

    def isPatternEnabled(self, name: str) -> bool:
        """Whether a pattern is applied.

        Args:
            name: The pattern.

        Returns:
            What was said of it, else whether the level applies patterns beyond the least.
        """
        return self._switches.get(name, self._level >= PatternsLevel.Default)

    def enableRuntimeAsserts(self, value: bool) -> Patterns:
        """Switches checks at run time.

        Args:
            value: Whether they are made.

        Returns:
            These patterns.
        """
        self.__dict__["_runtime_asserts"] = bool(value)
        return self

    def runtimeAssertsOn(self) -> bool:
        """Whether checks are made at run time."""
        return self._runtime_asserts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.isPatternEnabled(name)

    def __setattr__(self, name: str, value: object) -> None:
        self.enablePattern(name, value)  # type: ignore[arg-type]  # checked there

    def __repr__(self) -> str:
        return f"Patterns({self._level.name}, {self._switches})"
