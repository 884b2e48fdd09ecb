"""The hint of an error about a name that is not known: the nearest one that is."""

from __future__ import annotations

TYPE_CHECKING = False  # the launcher reads this file too, and `typing` would cost it milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(
    name: str, known: Iterable[str], *, cutoff: float = 0.6, shown: str = "{}"
) -> str | None:
    """Asks whether another name was meant.

    Args:
        name: What was given.
        known: What is accepted.
        cutoff: How alike they must be: 0 for any, 1 for equal ones.
        shown: How the name is written, with ``{}`` or ``{!r}`` in its place.

    Returns:
        A question, or None where nothing is near.
    """
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {shown.format(near[0])}?" if near else None
