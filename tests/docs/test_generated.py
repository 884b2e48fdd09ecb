"""Generated parts of the documentation are what the code says."""

import subprocess
import sys

from tests.distributed.jobs import ROOT


def test_the_pages_are_up_to_date():
    check = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert (check.stdout, check.stderr, check.returncode) == ("", "", 0)
