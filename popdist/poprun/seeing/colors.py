"""Whether to colour, and how."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

RED, PLAIN = "\x1b[31m", "\x1b[0m"


def wants_color(choice: str, environ: Mapping[str, str], fd: int) -> bool:
    """Decides about colours for a stream.

    Args:
        choice: The value of ``--color``: "auto", "always" or "never".
        environ: The environment; a ``NO_COLOR`` that is not empty turns "auto" off
            (https://no-color.org), as does ``TERM=dumb``.
        fd: The stream's descriptor.

    Returns:
        Whether to colour.
    """
    if choice != "auto":
        return choice == "always"
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb" and os.isatty(fd)


def painted(text: str, color: str, *, wanted: bool) -> str:
    """A text in a colour, or as it is.

    Args:
        text: The text.
        color: One of this module's colours.
        wanted: Whether to colour.

    Returns:
        The text.
    """
    return f"{color}{text}{PLAIN}" if wanted else text
