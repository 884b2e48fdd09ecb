"""Tools that find out why a job trains another model than its program alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.comparison import Comparison
from popdist.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Comparison", "compare_alone"]


def compare_alone(
    program: Sequence[str],
    *,
    updates: int = 3,
    num_instances: int = 2,
    options: Sequence[str] = (),
) -> Comparison:
    """Runs a program alone and as a job, and compares the weights after each of the first updates.

    The same as ``poprun --compare-alone``, for tests in Python. The output of the program appears
    as usual.

    Args:
        program: The program with its arguments, such as ``["python", "train.py"]``.
        updates: How many updates are compared.
        num_instances: The number of instances of the job.
        options: More options of poprun.

    Returns:
        The comparison; ``is_equal`` says whether the job trains like the program alone.

    Raises:
        LaunchError: The program or its job has failed, or the options are wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "comparison.json")
        command = [
            *(sys.executable, "-m", "popdist.poprun"),
            *(f"--num-instances={num_instances}", f"--compare-alone={updates}", f"--json={result}"),
            *options,
            *program,
        ]
        code = subprocess.run(command, check=False).returncode
        if not result.exists():
            raise LaunchError(
                "PD024",
                "a job and its program alone cannot be compared, as a run has failed",
                value=f"exit code {code} of {' '.join(program)}",
                hint="the output above has the reason",
            )
        return Comparison.from_json(json.loads(result.read_text("utf-8")))
