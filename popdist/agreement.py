"""Checks that all instances agree on facts before an exchange.

Without this check, unequal models end in a hang or in sums of unrelated numbers. Each instance
states facts (name and value, both text). A digest of all facts is compared first; only where
digests differ, the facts themselves are exchanged, to name the difference.

Every comparison has the same form. So where one instance compares another variable than the others,
the digests differ, and all instances report the difference instead of a hang.

Each adapter raises its own error type, with the code PD007.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Gather = Callable[[bytes], list[bytes]]
    """Gives every instance what all of them hand in, in the order of their indices.

    All must call it; their contents have the same length.
    """

ABSENT = "(absent)"
"""The reported value of a fact that an instance did not state."""

_LISTED = 8
_LONGEST = 200
_BEFORE = 40


@dataclass(frozen=True)
class Disagreement:
    """A fact on which instances differ.

    Attributes:
        name: The fact.
        values: What each instance says, in the order of their indices.
    """

    name: str
    values: tuple[str, ...]

    @property
    def says(self) -> str:
        """Who says what; long values from shortly before their first difference on."""
        where: dict[str, list[str]] = {}
        for instance, value in enumerate(self.values):
            where.setdefault(value, []).append(str(instance))
        skipped = _first_difference(list(where)) - _BEFORE if max(map(len, where)) > _LONGEST else 0
        return "; ".join(
            f"{_excerpt(value, skipped)} on instance {', '.join(instances)}"
            for value, instances in where.items()
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.says}"


def digest(content: bytes | bytearray | memoryview) -> str:
    """A short text that differs where contents do.

    Args:
        content: The bytes.

    Returns:
        16 hexadecimal digits.
    """
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def numbered(name: str, counts: dict[str, int]) -> str:
    """A name that has not been given before; equal where names come in the same order.

    Args:
        name: The name.
        counts: How often each name was asked for; counted up.

    Returns:
        The name, with its number from the second time on.
    """
    number = counts[name] = counts.get(name, 0) + 1
    return name if number == 1 else f"{name} (number {number})"


def disagreements(facts: Mapping[str, str], gather: Gather) -> list[Disagreement]:
    """Compares this instance's facts with those of all others; every instance must call it.

    Args:
        facts: This instance's facts.
        gather: The transport.

    Returns:
        The disagreements; the same list on every instance.
    """
    text = json.dumps(facts).encode()
    heads = gather(hashlib.sha256(text).digest() + len(text).to_bytes(8, "big"))
    if len(set(heads)) == 1:
        return []
    longest = max(int.from_bytes(head[-8:], "big") for head in heads)
    # JSON may end in spaces.
    return compare([json.loads(body) for body in gather(text.ljust(longest))])


def compare(facts: Sequence[Mapping[str, str]]) -> list[Disagreement]:
    """Finds the facts on which instances differ.

    Args:
        facts: Each instance's facts.

    Returns:
        The disagreements, in the order in which their names first occur.
    """
    names = dict.fromkeys(name for instance in facts for name in instance)
    rows = [Disagreement(n, tuple(f.get(n, ABSENT) for f in facts)) for n in names]
    return [row for row in rows if len(set(row.values)) > 1]


def listed(found: Sequence[Disagreement]) -> str:
    """Disagreements as an error shows them.

    Args:
        found: At least one.

    Returns:
        A line for each of the first, and how many follow; every line begins with its break.
    """
    rest = len(found) - _LISTED
    lines = [str(row) for row in found[:_LISTED]] + ([f"and {rest} more"] if rest > 0 else [])
    return "".join(f"\n    {line}" for line in lines)


def _first_difference(values: Sequence[str]) -> int:
    together = enumerate(zip(*values, strict=False))
    return next((i for i, here in together if len(set(here)) > 1), min(map(len, values)))


def _excerpt(value: str, skipped: int) -> str:
    start = f"...{value[skipped:]}" if skipped > 0 else value
    return start if len(start) <= _LONGEST else f"{start[:_LONGEST]}..."
