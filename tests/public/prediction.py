"""What ``popdist-sdk check`` predicts of a program, from its sources alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist.sdk.check.resolve import SourceError, find, parse
from popdist.sdk.check.verdicts import BLOCKING, examine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.public.manifest import Program


def predict(program: Program, sources: Path) -> str:
    """``fine``, or the first name that the check says stops the program.

    Args:
        program: The program; tests in its folder are not part of it.
        sources: The folder of checkouts.
    """
    folder = sources / program.repository / program.tag / program.place
    found = []
    for path in find([str(folder)]):
        if "test" in path[len(str(folder)) :]:
            continue
        try:
            found += examine(parse(path))
        except SourceError:
            return "a source cannot be parsed"
    stops = [finding.verdict.name for finding in found if finding.verdict.status in BLOCKING]
    return f"stops: `{stops[0]}`" if stops else "fine"
