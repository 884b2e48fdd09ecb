"""The declaration of checks. `docs/checks.md` and the switches are made from these records."""

from __future__ import annotations

import os
from dataclasses import dataclass

from popdist.contract import skipped_checks
from popdist.popdist_core import topology


@dataclass(frozen=True)
class Check:
    """A check of an adapter, or of every program.

    Attributes:
        name: Its name, for ``POPDIST_SKIP_CHECKS`` and for pages.
        code: The code of its error or warning.
        judges: What it compares, as a sentence.
        when: The updates or events at which it runs.
        cost: What it costs there.
        stops: Whether a finding is an error; otherwise it is a warning.
        repeats: Whether it runs the program's model again.
    """

    name: str
    code: str
    judges: str
    when: str
    cost: str
    stops: bool
    repeats: bool = False


def is_enabled(check: Check) -> bool:
    """Whether a finding of a check is reported.

    What instances compare with each other they compare in any case: an instance with another
    environment would wait for them.

    Args:
        check: The check.

    Returns:
        False where ``POPDIST_SKIP_CHECKS``, a list with commas, has its name or ``all``; and for
        further passes, where the program is compared with itself alone, which they would disturb.
    """
    if check.repeats and topology().compare_folder is not None:
        return False
    return not skipped_checks(os.environ) & {check.name, "all"}


AT_END = Check(
    name="end",
    code="PD007",
    judges="trained weights are equal on all instances",
    when="when all programs have ended well (poprun; `--check-weights=no` switches it off too)",
    cost="a digest of the weights",
    stops=True,
)
CONNECTED = Check(
    name="connected",
    code="PD025",
    judges="instances that train exchange something, and do not all end with weights of their own",
    when="when all programs have ended well (poprun)",
    cost="nothing",
    stops=False,
)

CHECKS = (AT_END, CONNECTED)
"""The checks of every program that poprun starts."""
