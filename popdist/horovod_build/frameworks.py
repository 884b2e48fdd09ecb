"""Reads the frameworks' and the tools' versions from what pip recorded, without importing them."""

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
"""Distributions that our commands, Horovod's own setup.py, or its import need."""


def torch() -> Framework | None:
    """The installed PyTorch."""
    installed = installed_version("torch")
    if installed is None:
        return None
    return Framework("torch", installed, _torch_cuda())


def tensorflow() -> Framework | None:
    """The installed TensorFlow, under whichever name it was published."""
    for name in _TENSORFLOW:
        installed = installed_version(name)
        # The plain name may be a shell that only requires the real one (as on some platforms).
        if installed is not None and find_spec("tensorflow") is not None:
            return Framework(name, installed)
    return None


def tools() -> tuple[tuple[str, str | None], ...]:
    """The tools of the build.

    Returns:
        Pairs of distribution and version, None for a missing one.
    """
    return tuple((name, installed_version(name)) for name in TOOLS)


def cmake(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The cmake that is going to run.

    Args:
        environ: The environment, with the interpreter's programs first in ``PATH``.

    Returns:
        Path and version, or None twice.
    """
    path = shutil.which("cmake", path=environ.get("PATH"))
    match = re.search(r"version\s*([\d.]+)", answer([path, "--version"], environ)) if path else None
    return (path, match.group(1)) if path and match else (None, None)


def cuda(environ: Mapping[str, str]) -> Cuda:
    """The CUDA toolkit and NCCL, for a build with GPU operations.

    Args:
        environ: The environment; ``CUDA_HOME`` and ``HOROVOD_NCCL_HOME`` name places.

    Returns:
        Their record; what is missing is None there.
    """
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
    """A distribution's version.

    Args:
        name: Its name.

    Returns:
        The version, or None where it is not installed.
    """
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
