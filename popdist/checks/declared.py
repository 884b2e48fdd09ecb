"""The declaration of a check. `docs/checks.md` and the switches are made from these records."""

from __future__ import annotations

import os
from dataclasses import dataclass

from popdist.contract import skipped_checks
from popdist.popdist_core import topology


@dataclass(frozen=True)
class Check:
    """One check of an adapter.

    Attributes:
        name: Its name, for ``POPDIST_SKIP_CHECKS`` and for pages.
        code: The code of its error or warning.
        judges: What it compares, as a sentence.
        when: The updates or events at which it runs.
        cost: What it costs there.
        stops: Whether a finding is an error; otherwise it is a warning.
    """

    name: str
    code: str
    judges: str
    when: str
    cost: str
    stops: bool


def is_enabled(check: Check) -> bool:
    """Whether the program's environment leaves a check on.

    Args:
        check: The check.

    Returns:
        False where ``POPDIST_SKIP_CHECKS``, a list with commas, has its name or ``all``, and where
        the program is compared with itself alone, which its further passes would disturb.
    """
    if topology().compare_folder is not None:
        return False
    return not skipped_checks(os.environ) & {check.name, "all"}
