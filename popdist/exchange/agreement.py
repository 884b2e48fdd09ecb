"""Do all instances mean the same thing? Found out before they exchange anything.

Without this, unequal models end in a hang or, worse, in sums of unrelated numbers. Each instance
states facts (name and value, both text). One digest of them all travels first; only where digests
differ do the facts themselves, to say which.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ABSENT = "(absent)"
"""What an instance is reported to say about a fact that it did not state."""

_SHOWN = 8


@dataclass(frozen=True)
class Disagreement:
    """A fact on which instances differ.

    Attributes:
        name: The fact.
        values: What each instance says, in the order of their indices.
    """

    name: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        says: dict[str, list[str]] = {}
        for instance, value in enumerate(self.values):
            says.setdefault(value, []).append(str(instance))
        return f"{self.name}: " + "; ".join(
            f"{value} on instance {', '.join(where)}" for value, where in says.items()
        )


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
    rest = len(found) - _SHOWN
    lines = [str(row) for row in found[:_SHOWN]] + ([f"and {rest} more"] if rest > 0 else [])
    return "".join(f"\n    {line}" for line in lines)


def disagreements(facts: Mapping[str, str], horovod: Any) -> list[Disagreement]:
    """Compares this instance's facts with those of all others; every instance must call it.

    Args:
        facts: This instance's facts.
        horovod: The module ``horovod.torch``, initialised.

    Returns:
        The disagreements; the same list on every instance.
    """
    text = json.dumps(facts).encode()
    digest = torch.frombuffer(bytearray(hashlib.sha256(text).digest()), dtype=torch.uint8)
    digests = horovod.allgather(digest.view(1, -1), name="popdist.agreement.digest")
    if bool((digests == digests[0]).all()):
        return []
    size = torch.tensor([len(text)])
    sizes = horovod.allgather(size, name="popdist.agreement.size").tolist()
    body = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    bodies = horovod.allgather(body, name="popdist.agreement.facts")
    return compare([json.loads(bytes(part.tolist())) for part in bodies.split(sizes)])
