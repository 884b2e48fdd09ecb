"""Runs Horovod's own parallel tests under mpirun, horovodrun and poprun, and compares the results.

    python -m tests.horovods_own ~/horovod test_torch.py test_tensorflow.py --ranks 2

The first argument is a checkout of Horovod at the release that is installed (v0.28.1). Nothing of
it is copied. Its tests need the package `mock`. A test may fail under all, for example as a
framework has changed since the release.
The exit code is 1 if a test has another outcome under horovodrun or poprun than under mpirun.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "mpirun": ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np"),
    "horovodrun": ("horovodrun", "--mpi", "-np"),
    "poprun": ("poprun", "--num-instances"),
}
# A failed test must not end the other rank, so the exit code is always 0.
_PROGRAM = """
import os, sys, pytest
folder, *arguments = sys.argv[1:]
rank = os.environ["OMPI_COMM_WORLD_RANK"]
pytest.main(["-q", "-p", "no:cacheprovider", f"--junitxml={folder}/{rank}.xml", *arguments])
"""

Outcomes = dict[str, str]


def outcomes(launcher: str, file: Path, ranks: int, more: list[str]) -> Outcomes:
    """The outcome of each test of a file on each rank.

    Args:
        launcher: A key of `LAUNCHERS`.
        file: The tests.
        ranks: How many processes run them.
        more: Further arguments of pytest.

    Returns:
        ``passed``, ``skipped`` or the first line of a failure, by rank and name; only ``aborted``
        for a rank that ended early.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-c", _PROGRAM, folder, str(file), *more]
        if launcher == "poprun":
            script = Path(folder) / "rank.py"
            script.write_text(_PROGRAM)
            program = [sys.executable, str(script), folder, str(file), *more]
        head, *options = LAUNCHERS[launcher]
        folders = (file.parents[1], file.parents[1] / "utils", os.environ.get("PYTHONPATH"))
        paths = os.pathsep.join(str(path) for path in folders if path)
        subprocess.run(
            [str(BIN / head), *options, str(ranks), *program],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            },
            stdout=subprocess.DEVNULL,
            check=False,
        )
        found: Outcomes = {}
        for rank in range(ranks):
            report = Path(folder) / f"{rank}.xml"
            if not report.exists():
                found[f"rank {rank}"] = "aborted"
                continue
            for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by pytest above
                found[f"rank {rank}: {case.get('name')}"] = _outcome(case)
        return found


def _outcome(case: ET.Element) -> str:
    for child in case:
        if child.tag == "skipped":
            return "skipped"
        if child.tag in ("failure", "error"):
            return str(child.get("message")).partition("\n")[0]
    return "passed"


def _counted(found: Outcomes) -> str:
    kinds = Counter(
        kind if kind in ("passed", "skipped", "aborted") else "failed" for kind in found.values()
    )
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def main() -> int:
    """Runs the files, prints what differs, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of Horovod")
    parser.add_argument("files", nargs="+", help="files of test/parallel")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launchers", default=",".join(LAUNCHERS), help="separated by commas")
    parser.add_argument("-k", default=None, help="as for pytest")
    asked = parser.parse_args()
    more = ["-k", asked.k] if asked.k else []
    differ = 0
    for name in asked.files:
        file = (asked.checkout / "test" / "parallel" / name).resolve(strict=True)
        found = {one: outcomes(one, file, asked.ranks, more) for one in asked.launchers.split(",")}
        counts = "; ".join(f"{one} {_counted(of)}" for one, of in found.items())
        print(f"{name}: {counts}", flush=True)  # noqa: T201
        for key in sorted(set().union(*found.values())):
            results = {one: of.get(key) for one, of in found.items()}
            if len({*results.values()}) > 1:
                differ += 1
                print(f"  {key}: {results}")  # noqa: T201
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
