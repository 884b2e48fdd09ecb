"""Generated parts of the documentation are what the code says."""

import subprocess
import sys
from importlib import import_module

from popdist import errors
from popdist_onnx import errors as onnx_errors
from popdist_tf import errors as tensorflow_errors
from popdist_torch import errors as torch_errors
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


def test_every_error_code_has_a_cause_and_a_remedy(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    families = import_module("remedies").FAMILIES.values()
    codes = [code for family in families for code in family]
    packages = (errors, torch_errors, tensorflow_errors, onnx_errors)
    assert sorted(codes) == sorted(code for package in packages for code in package.CODES)
    for family in families:
        for cause, remedy in family.values():
            assert cause
            assert remedy


def test_the_pictures_are_up_to_date():
    check = subprocess.run(
        [sys.executable, ROOT / "docs" / "drawings" / "draw.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert (check.stdout, check.stderr, check.returncode) == ("", "", 0)
