# noqa: INP001 - a script beside data files, not a package
"""Resolves the extras for other machines: ``python constraints/platforms.py [PYTHON MACHINE]``.

Each is a dry run of pip, for wheels of that machine only, with the set of its Python. pip evaluates
markers, and the Python that a package requires, for the Python that runs pip, so both are evaluated
here: a set is for each release of its Python, from the first one on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from constraints.choose import choose, left_out  # noqa: E402 - this is a script

TARGETS = tuple(
    (python, machine)
    for python in ("3.10", "3.11", "3.12", "3.13", "3.14")
    for machine in ("x86_64", "aarch64")
)
_NEWEST_GLIBC = 36
"""Of Debian 12; wheels for later versions of the C library are not counted."""


def extras() -> dict[str, list[str]]:
    """The requirements of each extra, as pyproject.toml lists them."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = project["project"]["optional-dependencies"]
    del found["all"]  # it names others
    return found


def applying(lines: list[str], python: str, machine: str) -> list[str]:
    """The requirements that apply to a machine, without their markers."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "extra": "",
    }
    kept = []
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            requirement.marker = None
            kept.append(str(requirement))
    return kept


def command(python: str, machine: str, constraints: Path, folder: Path) -> list[str]:
    """The dry run for one machine; ``folder`` gets pip's report."""
    wanted = [line for name, lines in extras().items() if name != "zoo" for line in lines]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(5, _NEWEST_GLIBC + 1)]
    tags += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    return [
        *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"),
        *("--disable-pip-version-check", "--only-binary", ":all:"),
        *("--target", str(folder / "none"), "--report", str(folder / "report.json")),
        # For packages; pip compares what a package requires with the Python that runs pip.
        *("--ignore-requires-python", "--implementation", "cp", "--python-version", python),
        *(word for tag in tags for word in ("--platform", tag)),
        *("--constraint", str(constraints)),
        *applying(wanted, python, machine),
    ]


def resolve(python: str, machine: str) -> str:
    """Resolves all extras for a machine; what pip says where it cannot, else an empty text."""
    major, minor = map(int, python.split("."))
    pins = (FOLDER / f"{choose((major, minor))}.txt").read_text(encoding="utf-8").splitlines()
    lines = applying([pin for pin in pins if pin and not pin.startswith("#")], python, machine)
    with tempfile.TemporaryDirectory(prefix="popdist-platforms-") as name:
        constraints = Path(name, "set.txt")
        constraints.write_text("\n".join(lines), encoding="utf-8")
        words = command(python, machine, constraints, Path(name))
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            return needing_later(Path(name, "report.json"), f"{python}.0")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "\n".join(errors) or done.stderr


def needing_later(report: Path, python: str) -> str:
    """The packages of a report of pip that another Python requires; an empty text for none."""
    found = [one["metadata"] for one in json.loads(report.read_text(encoding="utf-8"))["install"]]
    return ", ".join(
        f"{one['name']} {one['version']} needs Python {one['requires_python']}, not {python}"
        for one in found
        if not SpecifierSet(one.get("requires_python", "")).contains(python)
    )


def main(arguments: list[str]) -> int:
    """Prints a line for each machine.

    Args:
        arguments: A Python and a machine, or nothing for all.

    Returns:
        The exit code: 1 where one of them cannot be resolved.
    """
    code = 0
    for python, machine in [tuple(arguments)] if arguments else TARGETS:
        problem = resolve(python, machine)
        major, minor = map(int, python.split("."))
        note = left_out((major, minor))
        said = problem or ("resolved" + (f"; {note}" if note else ""))
        sys.stdout.write(f"Python {python}, {machine}: {said}\n")
        sys.stdout.flush()
        code |= bool(problem)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
