"""Checks sources and says what was found, as lines for people or as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, NamedTuple

from popdist.sdk.check.resolve import Resolver, Use
from popdist.sdk.check.sources import SourceError, find, parse
from popdist.sdk.check.syntax import guarded_lines
from popdist.sdk.check.verdicts import Verdict, constructs, exports, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.sdk.check.sources import Source

BLOCKING = ("refused", "unknown", "edit")
"""The words for what keeps a program from running."""

_WORDS = {"edit": "to be changed", "look": "perhaps to be changed"}


class Finding(NamedTuple):
    """One name at one place.

    Attributes:
        path: The file.
        line: The line.
        verdict: What is to be said of it.
    """

    path: str
    line: int
    verdict: Verdict


def examine(source: Source) -> list[Finding]:
    """Checks one source.

    Args:
        source: The parsed file.

    Returns:
        Each name once for each line that uses it, in the order of the lines.
    """
    resolver = Resolver(constructs, exports)
    resolver.visit(source.tree)
    uses = [*resolver.uses, *(Use(f".{one.name}", one.line) for one in resolver.methods)]
    beside_ipu = any(f"{use.name}.".startswith("tensorflow.python.ipu.") for use in uses)
    guarded = guarded_lines(source.tree)
    found: dict[Finding, None] = {}
    for use in uses:
        verdict = judge(use.name, use.keywords, beside_ipu=beside_ipu)
        if verdict is None:
            continue
        if use.line in guarded and verdict.status in BLOCKING:
            reason = f"{verdict.reason.rstrip('.')}; the program catches that"
            verdict = verdict._replace(status="look", reason=reason)
        found[Finding(source.path, use.line, verdict)] = None
    return sorted(found, key=lambda finding: (finding.line, finding.verdict.name))


def check(paths: Sequence[str], *, as_json: bool) -> int:
    """Checks files and folders, and prints what was found.

    Args:
        paths: Files and folders.
        as_json: Whether to print JSON.

    Returns:
        2 where a file could not be checked, else 1 where something is refused, unknown or has to be
        changed, else 0.

    Raises:
        SourceError: A path does not exist.
    """
    findings: list[Finding] = []
    errors: list[SourceError] = []
    for path in find(paths):
        source = _parsed(path)
        if isinstance(source, SourceError):
            errors.append(source)
        else:
            findings += examine(source)
    print(_json(findings, errors) if as_json else _text(findings))  # noqa: T201 - asked for
    for error in errors:
        print(f"popdist-sdk: {error}", file=sys.stderr)  # noqa: T201 - for people
    blocks = any(finding.verdict.status in BLOCKING for finding in findings)
    return 2 if errors else int(blocks)


def _parsed(path: str) -> Source | SourceError:
    try:
        return parse(path)
    except SourceError as error:
        return error


def _text(findings: list[Finding]) -> str:
    lines = []
    for path, line, verdict in findings:
        text = f"{path}:{line}: {verdict.name}: {_WORDS.get(verdict.status, verdict.status)}"
        if verdict.reason:
            text += f": {verdict.reason.rstrip('.')}"
        if verdict.instead:
            text += f"; instead: {verdict.instead}"
        lines.append(text)
    counts = _counts(findings)
    total = ", ".join(f"{count} {_WORDS.get(word, word)}" for word, count in counts.items())
    return "\n".join([*lines, f"names: {total}" if total else "no name of the SDK is used"])


def _counts(findings: list[Finding]) -> dict[str, int]:
    """How many different names have each status."""
    order = ("works", "accepted without effect", "refused", "unknown", "edit", "look")
    names = {(finding.verdict.status, finding.verdict.name) for finding in findings}
    counts = {word: sum(status == word for status, _ in names) for word in order}
    return {word: count for word, count in counts.items() if count}


def _json(findings: list[Finding], errors: list[SourceError]) -> str:
    return json.dumps(
        {
            "names": [
                {"file": path, "line": line, **verdict._asdict()}
                for path, line, verdict in findings
            ],
            "counts": _counts(findings),
            "errors": [{"what": error.what, "where": error.value} for error in errors],
        },
        indent=2,
    )
