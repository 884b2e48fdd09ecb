"""One wheel, four packages, each usable without the frameworks of the others."""

import os
import subprocess
import sys
import zipfile

import pytest

import popdist
from tests.distributed.jobs import ROOT
from tests.packaging.environments import fresh_environment

PACKAGES = ("popdist", "popdist_torch", "popdist_tf", "popdist_onnx")
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "onnx": "onnx"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet",
         "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT],
        check=True,
    )  # fmt: skip
    (path,) = folder.glob("popdist-*.whl")
    return path


def ask(python, code):
    return run([python, "-I", "-c", code]).split()


def run(command):
    """Runs a command far from this checkout, and gives its output."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environ, cwd="/"
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_wheel_holds_the_four_packages_typed_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, f"popdist-{popdist.__version__}.dist-info"}
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    # Of modules that are made from a table.
    assert {"popdist_tf/ipu/__init__.pyi", "popdist_tf/ipu/ops/nn_ops.pyi"} <= set(names)


def test_without_any_framework_the_core_and_the_launcher_work(wheel, tmp_path, mpirun):
    python = fresh_environment(tmp_path, wheel)
    assert ask(python, "import popdist; print(popdist.getNumInstances())") == ["1"]
    assert run([tmp_path / "bin" / "poprun", "--version"]) == f"poprun {popdist.__version__}\n"
    code = "import popdist; print(popdist.getNumInstances(), popdist.__file__)"
    output = run([tmp_path / "bin" / "poprun", "--mpirun", mpirun, "-np", "2", python, "-c", code])
    site = next(tmp_path.glob("lib/python3*/site-packages"))
    assert output == f"2 {site / 'popdist' / '__init__.py'}\n" * 2


@pytest.mark.parametrize(
    ("package", "extra"),
    [("popdist_torch", "torch"), ("popdist_tf", "tensorflow"), ("popdist_onnx", "onnx")],
)
def test_an_adapter_needs_its_own_framework_only(wheel, tmp_path, package, extra):
    python = fresh_environment(tmp_path, wheel, extra)
    others = [module for name, module in FRAMEWORKS.items() if name != extra]
    found = ask(
        python,
        f"import {package}, {FRAMEWORKS[extra]}\nfrom importlib.util import find_spec\n"
        f"print(*(find_spec(name) is not None for name in {others!r}))",
    )
    assert found[-2:] == ["False", "False"]
