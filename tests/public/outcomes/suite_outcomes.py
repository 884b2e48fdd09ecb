"""A plugin of pytest that writes each outcome as one line, so that a crash loses one test only."""

from __future__ import annotations

import json
import os
from pathlib import Path

OUTCOMES = "SUITE_OUTCOMES"
"""The environment variable with the path of the file."""


def _write(test: str, outcome: str, reason: str = "") -> None:
    # With several processes, each has a file of its own.
    path = os.environ[OUTCOMES] + os.environ.get("OMPI_COMM_WORLD_RANK", "")
    with Path(path).open("a") as file:
        file.write(json.dumps([test, outcome, reason]) + "\n")


def _reason(report) -> str:
    if isinstance(report.longrepr, tuple):  # a test that was skipped: path, line, reason
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The last lines of a failed import have its cause, the first ones of an error.
    return " ".join(lines[:3] if crash else lines[-1:])[:300]


def pytest_collection_finish(session) -> None:
    for item in session.items:
        _write(item.nodeid, "failed", "the process ended before this test")


def pytest_collectreport(report) -> None:
    if report.failed:
        _write(report.nodeid, "failed", _reason(report))
    elif report.skipped:
        _write(report.nodeid, "skipped", _reason(report))


def pytest_runtest_logstart(nodeid, location) -> None:  # noqa: ARG001 - pytest passes by name
    _write(nodeid, "started", "the process ended in this test")


def pytest_runtest_logreport(report) -> None:
    if report.when == "call" or not report.passed:
        expected = report.skipped and hasattr(report, "wasxfail")
        _write(report.nodeid, "passed" if expected else report.outcome, _reason(report))
