"""What pyproject.toml cannot say: stubs in wheels, editable installs, the README of an index."""

from __future__ import annotations

import os
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

HERE = Path(__file__).parent
# Where the project is published, such as https://forge.example/popdist; releases set it.
REPOSITORY = os.environ.get("POPDIST_REPOSITORY", "").rstrip("/")


def long_description() -> str:
    """The README as a package index can show it: such a page has no files beside it.

    Links to files become links into the repository. Where no repository is known, pictures are left
    out, and a link becomes the path of its file.
    """
    text = (HERE / "README.md").read_text(encoding="utf-8")
    if REPOSITORY:
        text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{REPOSITORY}/raw/main/", text)
        return re.sub(r"(\]\()(?!https?:)", rf"\1{REPOSITORY}/blob/main/", text)
    text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n\n", "", text)
    return re.sub(r"\[([^]]*)\]\((?!https?:)([^)]*)\)", r"\1 (`\2`)", text)


class BuildWithStubs(build_py):
    """Adds the stubs of modules that are made from a table when they are imported."""

    def run(self) -> None:
        """Copies the packages, then writes the stubs beside them."""
        if not self.editable_mode:
            # An earlier build has left modules there that may have another name by now.
            for package in self.packages:
                shutil.rmtree(Path(self.build_lib, *package.split(".")), ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        stubs = runpy.run_path(str(HERE / "popdist_tf" / "ipu" / "tree.py"))["stubs"]()
        for module, text in stubs.items():
            place = Path(self.build_lib, *module.split("."))
            is_package = any(other.startswith(f"{module}.") for other in stubs)
            file = place / "__init__.pyi" if is_package else place.with_suffix(".pyi")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


# A line of a .pth file, which Python runs at each start: setuptools' own takes ten milliseconds.
# The finder of `sys.path` remains the last one, as absl expects, and its places come first.
EDITABLE = """\
import sys, _frozen_importlib_external as e; f = e.PathFinder.find_spec; \
sys.meta_path.insert(-1, type("PopdistEditable", (), {{"find_spec": staticmethod( \
lambda name, path=None, target=None, f=f: \
(f(name) or f(name, [{root}])) if name in {tops} else None)}}))
"""


class EditablePackages:
    """Makes the packages of this checkout importable, and nothing else of it.

    The checkout on the path would serve ``tests``, ``docs`` and ``benchmarks`` as well, before the
    packages of these names that users' programs have.
    """

    def __enter__(self) -> EditablePackages:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, wheel: Any, files: Any, mapping: Any) -> None:
        """Writes the file into the wheel that pip installs."""
        del files, mapping
        tops = ["popdist", "popdist_onnx", "popdist_tf", "popdist_torch"]
        line = EDITABLE.format(root=ascii(str(HERE.resolve())), tops=tops)
        wheel.writestr("__editable__.popdist.pth", line)


class EditableWheel(editable_wheel):
    """Installs a checkout by `EditablePackages`."""

    def _select_strategy(self, *_: object) -> EditablePackages:
        return EditablePackages()


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    url=REPOSITORY or None,
    project_urls={
        name: f"{REPOSITORY}/{path}"
        for name, path in {
            "Documentation": "blob/main/docs/index.md",
            "Changelog": "blob/main/CHANGELOG.md",
            "Issues": "issues",
        }.items()
        if REPOSITORY
    },
    cmdclass={"build_py": BuildWithStubs, "editable_wheel": EditableWheel},
)
