"""Reads versions of frameworks and tools from pip's metadata, without importing the packages."""

from __future__ import annotations

import ast
import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.horovod_build.facts import Cuda, Framework, answer

if TYPE_CHECKING:
    from collections.abc import Mapping

_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-rocm", "tf-nightly")
TOOLS = (
    *("pip", "setuptools", "wheel", "ninja"),
    *("packaging", "cffi", "cloudpickle", "psutil", "pyyaml"),
)
"""Distributions that the build commands, Horovod's setup.py, or Horovod's import need."""


def torch() -> Framework | None:
    """The installed PyTorch."""
    installed = installed_version("torch")
    if installed is None:
        return None
    return Framework("torch", installed, _torch_cuda())


def tensorflow() -> Framework | None:
    """The installed TensorFlow, under any of its distribution names."""
    for name in _TENSORFLOW:
        installed = installed_version(name)
        # The plain name may be an empty distribution that requires the real one.
        if installed is not None and find_spec("tensorflow") is not None:
            return Framework(name, installed)
    return None


def tools() -> tuple[tuple[str, str | None], ...]:
    """Pairs of build tool and version; None for a missing tool."""
    return tuple((name, installed_version(name)) for name in TOOLS)


def cmake(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Path and version of the cmake on ``PATH``, or None twice."""
    path = shutil.which("cmake", path=environ.get("PATH"))
    match = re.search(r"version\s*([\d.]+)", answer([path, "--version"], environ)) if path else None
    return (path, match.group(1)) if path and match else (None, None)


def cuda(environ: Mapping[str, str]) -> Cuda:
    """The CUDA toolkit and NCCL; ``CUDA_HOME`` and ``HOROVOD_NCCL_HOME`` name their places."""
    given = environ.get("CUDA_HOME")
    nvcc = f"{given}/bin/nvcc" if given else shutil.which("nvcc", path=environ.get("PATH"))
    said = re.search(r"release ([\d.]+)", answer([nvcc, "--version"], environ)) if nvcc else None
    home = _toolkit_home(Path(nvcc)) if nvcc and said else None
    nccl = _nccl(environ, home)
    return Cuda(
        home=home,
        version=said.group(1) if said else None,
        nccl=nccl,
        nccl_version=None if nccl is None else _nccl_version(nccl),
    )


def installed_version(name: str) -> str | None:
    """A distribution's version, or None where the distribution is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    """The CUDA version that PyTorch's generated ``version.py`` records."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        try:
            tree = ast.parse((Path(folder) / "version.py").read_text(encoding="utf-8"))
        except (OSError, SyntaxError):
            continue
        for node in tree.body:
            match node:
                case ast.AnnAssign(target=ast.Name("cuda"), value=ast.Constant(str() as found)):
                    return found
                case ast.Assign(targets=[ast.Name("cuda")], value=ast.Constant(str() as found)):
                    return found
    return None


def _toolkit_home(nvcc: Path) -> Path | None:
    """The toolkit's root; a small script on ``PATH`` may stand in for the program itself."""
    for home in (nvcc.resolve().parents[1], Path("/usr/local/cuda")):
        if (home / "include" / "cuda_runtime.h").is_file():
            return home
    return None


def _nccl(environ: Mapping[str, str], toolkit: Path | None) -> Path | None:
    candidates = [Path(environ["HOROVOD_NCCL_HOME"])] if environ.get("HOROVOD_NCCL_HOME") else []
    spec = find_spec("nvidia")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    candidates += [Path(folder) / "nccl" for folder in folders]
    candidates += [toolkit] if toolkit is not None else []
    candidates.append(Path("/usr"))
    for home in candidates:
        if (home / "include" / "nccl.h").is_file():
            return home
    return None


def _nccl_version(home: Path) -> str:
    text = (home / "include" / "nccl.h").read_text(encoding="utf-8", errors="replace")
    numbers = [
        match.group(1)
        for part in ("MAJOR", "MINOR", "PATCH")
        if (match := re.search(rf"^#define\s+NCCL_{part}\s+(\d+)", text, re.MULTILINE))
    ]
    return ".".join(numbers)
