"""The build: its components, patches, command and cache key. Pure: facts in, plan out."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from popdist.horovod_build.patches import HOROVOD, Patch, Target, digest, select

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from popdist.horovod_build.facts import Facts, Machine, Mpi, Python
    from popdist.horovod_build.options import Options


# The number of compiler processes: by processors, by memory, or as asked for.


BYTES_PER_JOB = 2_400_000_000
"""Room for one compiler process: measured 1.9 GB with GCC 12, and 2.4 GB with debug information."""

DISK_NEEDED = 500_000_000
"""Bytes for source, objects and wheel together, with a margin."""


@dataclass(frozen=True)
class Jobs:
    """Compiler processes at a time.

    Attributes:
        count: How many.
        note: Why the number is below the number of processors, or a warning; None without either.
    """

    count: int
    note: str | None = None


def choose_jobs(machine: Machine, requested: int | None) -> Jobs:
    """Limits the compiler processes by the memory that is free now.

    A number that the user asked for is kept, with a warning where memory is short, because the
    memory may become free soon.
    """
    fitting = machine.available_memory // BYTES_PER_JOB
    memory = f"{machine.available_memory / 1e9:.1f} GB of memory is free"
    each = f"a compiler process takes up to {BYTES_PER_JOB / 1e9:.1f} GB"
    if requested is not None:
        if requested > max(1, fitting):
            return Jobs(requested, f"{memory} and {each}: --jobs {requested} may not fit")
        return Jobs(requested)
    if fitting < 1:
        return Jobs(1, f"only {memory} and {each}: the compiler may be killed")
    if fitting < machine.cpus:
        return Jobs(fitting, f"{memory} and {each}: {fitting} at a time, not {machine.cpus}")
    return Jobs(machine.cpus)


NCCL_LINKS = "nccl"
"""Folder in the unpacked source with links to NCCL, in the layout that Horovod looks for."""

_KEY_LENGTH = 16
# The user's settings for another build of Horovod, or of another tool, must not leak into this one.
_DROPPED_PREFIXES = ("HOROVOD_", "CMAKE_")
_KEPT = ("CMAKE_PREFIX_PATH", "HOROVOD_BUILD_CUDA_CC_LIST")


@dataclass(frozen=True)
class Build:
    """A build, decided in full.

    Attributes:
        components: Everything that the wheel depends on, as pairs of name and value.
        patches: The changes to the source.
        jobs: Compiler processes at a time.
        command: What compiles, run in the source's root; ``{out}`` stands for the folder that gets
            the wheel.
        variables: What is set in the environment of the command; ``{source}`` stands for the root
            of the unpacked source.
        search: Folders that are put before the others in ``PATH``.
        frameworks: The bindings that are built, by the names of their modules in Horovod.
        nccl: Whether GPU operations are built.
        notes: What to tell the user.
        libc: The C library of this machine, such as ``"glibc 2.36"``.
    """

    components: tuple[tuple[str, str], ...]
    patches: tuple[Patch, ...]
    jobs: Jobs
    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    search: tuple[str, ...]
    frameworks: tuple[str, ...]
    nccl: bool
    notes: tuple[str, ...]
    libc: str

    @property
    def key(self) -> str:
        """The name of all wheels that may be used in place of one another."""
        text = json.dumps(self.components)
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]

    @property
    def place(self) -> str:
        """The wheel's folder in the cache, which machines with different C libraries may share."""
        return f"{self.key}-{self.libc.replace(' ', '-')}"

    @property
    def version(self) -> str:
        """The version that the wheel carries; its local part tells whose build it is."""
        return f"{HOROVOD}+popdist.{self.key}"

    def environment(self, environ: Mapping[str, str], source: Path) -> dict[str, str]:
        """The command's environment, without variables of other builds of Horovod."""
        kept = {
            name: value
            for name, value in environ.items()
            if not name.startswith(_DROPPED_PREFIXES) or name in _KEPT
        }
        path = os.pathsep.join([*self.search, environ.get("PATH", os.defpath)])
        own = {name: value.replace("{source}", str(source)) for name, value in self.variables}
        return {**kept, **own, "PATH": path}


def make_plan(facts: Facts, options: Options) -> Build:
    """Decides the build; frameworks and MPI in ``facts`` have passed the requirements."""
    assert facts.mpi is not None  # noqa: S101 - checked by requirements
    target = Target(
        python=facts.python.version,
        torch=None if facts.torch is None else facts.torch.version,
        tensorflow=None if facts.tensorflow is None else facts.tensorflow.version,
        nccl=options.nccl,
        open_mpi=facts.mpi.version if facts.mpi.implementation == "Open MPI" else None,
    )
    patches = select(target)
    jobs = choose_jobs(facts.machine, options.jobs)
    rpath = library_path(facts.python, facts.mpi, nccl=facts.cuda.nccl if options.nccl else None)
    components = _components(facts, patches, rpath, nccl=options.nccl)
    draft = Build(
        components=components,
        patches=patches,
        jobs=jobs,
        command=(facts.python.executable, "setup.py", "bdist_wheel", "--dist-dir", "{out}"),
        variables=(),
        search=_search(facts),
        frameworks=tuple(
            module
            for module, framework in (("torch", facts.torch), ("tensorflow", facts.tensorflow))
            if framework is not None
        ),
        nccl=options.nccl,
        notes=_notes(facts, jobs, nccl=options.nccl),
        libc=facts.machine.libc,
    )
    variables = _variables(facts, draft, rpath)
    return Build(**{**vars(draft), "variables": tuple(sorted(variables.items()))})


def library_path(python: Python, mpi: Mpi, *, nccl: Path | None) -> str:
    """Where the built libraries look for MPI (and NCCL) at run time, as a CMake list.

    Inside one environment the path from Horovod's libraries to MPI's libraries is fixed, so the
    path is relative. An MPI outside of the environment has an absolute path. The frameworks load
    their own libraries before Horovod's; the frameworks' folders are listed as a fallback.
    """
    # horovod/torch and horovod/tensorflow are equally deep.
    home = python.packages / "horovod" / "torch"
    wanted = [folder for folder in (mpi.library, nccl and nccl / "lib") if folder is not None]
    wanted += [python.packages / "torch" / "lib", python.packages / "tensorflow"]
    inside = [
        folder.is_relative_to(python.prefix) and home.is_relative_to(python.prefix)
        for folder in wanted
    ]
    return ";".join(
        f"$ORIGIN/{os.path.relpath(folder, home)}" if relative else str(folder)
        for folder, relative in zip(wanted, inside, strict=True)
    )


def _components(
    facts: Facts, patches: tuple[Patch, ...], rpath: str, *, nccl: bool
) -> tuple[tuple[str, str], ...]:
    assert facts.mpi is not None  # noqa: S101 - checked by requirements
    machine = facts.machine
    gpu = f"NCCL {facts.cuda.nccl_version}, CUDA {facts.cuda.version}" if nccl else "off"
    return (
        ("horovod", HOROVOD),
        ("patches", digest(patches)),
        ("python", facts.python.abi),
        ("torch", str(facts.torch or "left out")),
        ("tensorflow", str(facts.tensorflow or "left out")),
        ("mpi", f"{facts.mpi.implementation} {facts.mpi.version}"),
        ("library path", rpath),
        ("nccl", gpu),
        # Versions of the C library are in the tags of exported wheels.
        ("machine", f"{machine.architecture} {machine.libc.partition(' ')[0]}, libstdc++"),
        ("switches", " ".join(f"{name}={on}" for name, on in _switches(facts, nccl=nccl).items())),
        ("flags", " ".join(f"{name}={value}" for name, value in facts.user_flags)),
    )


def _switches(facts: Facts, *, nccl: bool) -> dict[str, str]:
    """The options that are switched on or off; the key includes them, so they contain no paths."""
    gpu = {"GPU_OPERATIONS": "NCCL", "NCCL_LINK": "SHARED"} if nccl else {"WITHOUT_NVTX": "1"}
    switches = {
        "WITH_PYTORCH" if facts.torch is not None else "WITHOUT_PYTORCH": "1",
        "WITH_TENSORFLOW" if facts.tensorflow is not None else "WITHOUT_TENSORFLOW": "1",
        "WITHOUT_MXNET": "1",
        "WITH_MPI": "1",
        "WITH_GLOO": "1",
        "CPU_OPERATIONS": "MPI",
        **gpu,
    }
    if facts.machine.cpu_flags:
        switches["BUILD_ARCH_FLAGS"] = " ".join(f"-m{flag}" for flag in facts.machine.cpu_flags)
    return {f"HOROVOD_{name}": value for name, value in switches.items()}


def _search(facts: Facts) -> tuple[str, ...]:
    """The folders for ``PATH``: MPI's wrapper first, then the environment's tools."""
    assert facts.mpi is not None  # noqa: S101 - checked by requirements
    mpi = [str(facts.mpi.mpicxx.parent)] if facts.mpi.mpicxx is not None else []
    return tuple(dict.fromkeys([*mpi, str(facts.python.scripts)]))


def _variables(facts: Facts, plan: Build, rpath: str) -> dict[str, str]:
    """The settings that Horovod's setup.py, CMake and Ninja read."""
    jobs = str(plan.jobs.count)
    variables = {
        **_switches(facts, nccl=plan.nccl),
        "HOROVOD_LOCAL_VERSION": plan.version.partition("+")[2],
        "HOROVOD_BUILD_RPATH": rpath,
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        # Without this variable Horovod's setup.py starts eight processes.
        "MAKEFLAGS": f"-j{jobs}",
        # The bundled gloo declares CMake 2.8.12, which CMake 4 refuses unless told otherwise.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        # The patterns of failures are in English.
        "LC_ALL": "C.UTF-8",
        # CMake asks TensorFlow for its flags by importing it, several times.
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if facts.cmake is not None:
        variables["HOROVOD_CMAKE"] = facts.cmake
    if facts.compiler is not None:
        variables["CXX"] = facts.compiler.cxx
        if facts.compiler.cc is not None:
            variables["CC"] = facts.compiler.cc
    if plan.nccl:
        variables["HOROVOD_NCCL_HOME"] = f"{{source}}/{NCCL_LINKS}"
        variables["HOROVOD_CUDA_HOME"] = str(facts.cuda.home)
        # PyTorch derives the toolkit from where it finds nvcc, which may be a script elsewhere.
        variables["CUDA_HOME"] = str(facts.cuda.home)
    return variables


def _notes(facts: Facts, jobs: Jobs, *, nccl: bool) -> tuple[str, ...]:
    assert facts.mpi is not None  # noqa: S101 - checked by requirements
    notes = [jobs.note] if jobs.note is not None else []
    chosen, shell = facts.mpi.mpirun, facts.mpirun_on_path
    if chosen is not None and shell is not None and chosen.resolve() != shell.resolve():
        notes.append(
            f"mpirun on PATH is {shell}; this Horovod runs under {chosen} (poprun finds it)"
        )
    if facts.torch is not None and facts.torch.cuda is not None and not nccl:
        notes.append(
            "this PyTorch can use CUDA: GPU tensors need --with-nccl, or a copy to the host first"
        )
    return tuple(notes)
