"""What ``popdist-sdk check`` predicts of a program, from its sources alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist.sdk.check.resolve import SourceError, find, parse
from popdist.sdk.check.verdicts import BLOCKING, examine, examine_program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.public.manifest import Program


def predict(program: Program, sources: Path) -> str:
    """``fine``, or the first name that the check says stops the program.

    Args:
        program: The program, which is its file and the files beside it that this imports; without
            a command its folder, except for tests.
        sources: The folder of checkouts.
    """
    folder = sources / program.repository / program.tag / program.place
    main = next((word for word in program.command if word.endswith(".py")), "")
    try:
        if main:
            found = examine_program(str(folder / main))
        else:
            paths = [path for path in find([str(folder)]) if "test" not in path[len(str(folder)) :]]
            found = [finding for path in paths for finding in examine(parse(path))]
    except SourceError:
        return "a source cannot be parsed"
    stops = [finding.verdict.name for finding in found if finding.verdict.status in BLOCKING]
    return f"stops: `{stops[0]}`" if stops else "fine"
