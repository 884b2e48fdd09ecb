"""What was found on this machine: plain records that the pure steps work on.

They are filled by `popdist.horovod_build.machine`, `popdist.horovod_build.mpi` and
`popdist.horovod_build.frameworks`; tests fill them by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - the records are introspected by tests


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
    """What a build with NCCL needs.

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
        mpirun_on_path: What ``mpirun`` means in the user's shell.
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
