"""``python -m tests.again``: pytest, with a second try for the few tests that fail beside others.

`make test` keeps every core busy for many minutes. A test that fails there, and passes when it runs
alone, has depended on that load. The end of the run names such a test as one that failed; its
second try decides the exit code. The tests of a file share their jobs, so files are counted:
failures in many of them, and runs that were cut short, get no second try.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MOST = 5
"""Failures in more files than these are no matter of load."""

AGAIN = "POPDIST_TESTS_AGAIN"
"""Marks the second try for ``tests/conftest.py``, which words the summary."""

_SOME_FAILED = 1
_FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")


def main(arguments: list[str]) -> int:
    """Runs pytest, and what has failed once more.

    Args:
        arguments: Options with no values of their own or with ``=``, ``-n NUMBER``, and paths.

    Returns:
        The exit code of the second try where there is one, else of the first.
    """
    _FAILED.unlink(missing_ok=True)  # pytest keeps failures of earlier runs, of removed tests too
    code = _pytest(arguments)
    if code != _SOME_FAILED:
        return code
    failed = [*json.loads(_FAILED.read_text(encoding="utf-8"))] if _FAILED.exists() else []
    if not 0 < len({test.partition("::")[0] for test in failed}) <= MOST:
        return code
    sys.stdout.write(f"== once more, alone: {', '.join(failed)}\n")
    sys.stdout.flush()
    return _pytest([*failed, "-n", "0"], **{AGAIN: "1"})


def _pytest(arguments: list[str], **environ: str) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, env={**os.environ, **environ}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
