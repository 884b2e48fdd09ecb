"""Looks up the interpreter, the processor, the memory, the disk and the compiler.

Memory and processors are read from the kernel as well as from the control group, because a
container's limit is what ends a compiler process there.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.horovod_build.facts import Compiler, Machine, Python
from popdist.horovod_build.programs import answer
from popdist.poprun.machines.cpus import cpu_quota

if TYPE_CHECKING:
    from collections.abc import Mapping

# Horovod has hand-written code for half-precision sums with these, and nothing else to gain.
_USED_CPU_FLAGS = ("avx", "f16c", "fma")
_COMPILERS = ("c++", "g++", "clang++")
_C_OF = {"c++": "cc", "g++": "gcc", "clang++": "clang"}


def python() -> Python:
    """The running interpreter.

    Returns:
        Its record.
    """
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
    """The machine, as far as this process may use it.

    Args:
        build_folder: Where the build is going to be; it need not exist yet.
        root: Where ``proc`` and ``sys`` are mounted.

    Returns:
        Its record.
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
    """The C++ compiler that ``CXX`` names, or else the first of the usual ones.

    Args:
        environ: The environment.

    Returns:
        Its record, or None where none was found.
    """
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
    """Reads what a compiler says of itself.

    Args:
        text: Output of ``c++ --version``.

    Returns:
        Kind and version.
    """
    first = text.strip().splitlines()[0] if text.strip() else ""
    numbers = re.findall(r"\d+\.\d+(?:\.\d+)?", first)
    if "clang" in first:
        kind = "clang"
    else:
        kind = "gcc" if "Free Software Foundation" in text else "unknown"
    # GCC ends its first line with its version; what stands before it in brackets is the packager's.
    version = numbers[0 if kind == "clang" else -1] if numbers else "unknown"
    return kind, version


def cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    """The instruction sets of ``/proc/cpuinfo`` that Horovod has code for.

    Args:
        cpuinfo: The file's text.

    Returns:
        Their names, sorted.
    """
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    present = set(match.group(1).split()) if match else set()
    return tuple(flag for flag in _USED_CPU_FLAGS if flag in present)


def meminfo_available(meminfo: str) -> int:
    """Bytes that programs can get without swapping.

    Args:
        meminfo: Text of ``/proc/meminfo``.

    Returns:
        The number; a very large one where the text does not say.
    """
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
    """What is left under a group's limit; page cache counts as free, as the kernel drops it."""
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
