"""Versions as tuples of numbers, and ranges of them.

Enough for frameworks and compilers: local parts (``+cpu``) and pre-release marks do not order
anything here. The `packaging` distribution is not used because this package must import without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def release(version: str) -> tuple[int, ...]:
    """The numbers a version starts with, without trailing zeros.

    Args:
        version: Such as ``"2.13.0+cpu"``.

    Returns:
        Such as ``(2, 13)``; empty where the text starts with no number.
    """
    match = _RELEASE.match(version)
    numbers = [int(number) for number in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True)
class VersionRange:
    """Versions from one on, up to but without another.

    Attributes:
        at_least: The first version inside; None for no lower end.
        below: The first version outside again; None for no upper end.
    """

    at_least: str | None = None
    below: str | None = None

    def __contains__(self, version: str) -> bool:
        numbers = release(version)
        if self.at_least is not None and numbers < release(self.at_least):
            return False
        return self.below is None or numbers < release(self.below)

    def __str__(self) -> str:
        ends = [
            f">= {self.at_least}" if self.at_least is not None else "",
            f"< {self.below}" if self.below is not None else "",
        ]
        return ", ".join(end for end in ends if end) or "any version"


ANY = VersionRange()
"""Every version."""
