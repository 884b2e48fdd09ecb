"""What a guard loads: every instance of every job waits for it."""

import subprocess
import sys
from pathlib import Path

import popdist

SLOW = {"typing", "re", "enum", "contextlib", "collections", "dataclasses", "subprocess", "logging"}


def test_a_guard_starts_without_slow_modules():
    code = (
        "import sys; before = set(sys.modules); "
        f"sys.path.insert(0, {str(Path(popdist.__file__).parents[1])!r}); "
        "import popdist.poprun.guard.host; "
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    loaded = set(done.stdout.split())
    assert "popdist.poprun.guard.guard" in loaded
    assert not loaded & SLOW
