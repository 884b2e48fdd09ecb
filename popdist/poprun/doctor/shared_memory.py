"""Whether ranks can copy straight from each other's memory, and have room for shared segments."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.horovod_build.programs import answer
from popdist.poprun.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from popdist.poprun.plan.locate import Mpirun

_SEGMENTS = Path("/dev/shm")  # noqa: S108 - where the kernel keeps shared memory, not a scratch file
_ROOM = 256 << 20
_WORD = b"popdist!"


def look_at_shared_memory(mpirun: Mpirun | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Tries a single copy between two processes, and measures the room for segments.

    Args:
        mpirun: The mpirun, whose components are asked for.
        environ: The user's environment.

    Yields:
        The findings.
    """
    error = try_single_copy()
    supported = mpirun is None or _supports_cma(mpirun, environ)
    scope = _scope()
    facts = {"allowed": error == 0, "supported": supported, "ptrace_scope": scope}
    topic = "single-copy shared memory"
    if error == 0 and supported:
        yield Finding(topic, "ok", "processes may read each other's memory (CMA)", facts=facts)
    elif not supported:
        yield Finding(
            topic, "note", "this Open MPI was built without CMA, and copies twice", facts=facts
        )
    elif scope:
        # Open MPI asks the kernel for an exception, which this probe does not.
        yield Finding(
            topic,
            "note",
            f"not without asking: ptrace_scope is {scope}, and Open MPI then copies twice where "
            "its request is refused too",
            fix="sysctl kernel.yama.ptrace_scope=0, where the machine's rules allow that",
            facts=facts,
        )
    else:
        yield Finding(
            topic,
            "note",
            f"refused ({os.strerror(error)}), so Open MPI copies twice",
            fix="in a container: --cap-add=SYS_PTRACE, or a seccomp profile that allows "
            "process_vm_readv",
            facts=facts,
        )
    yield _look_at_segments()


def try_single_copy() -> int:
    """Lets one process read the memory of its sibling, as ranks of one machine are to each other.

    Returns:
        0, or the number of the error.
    """
    source = ctypes.create_string_buffer(_WORD, len(_WORD))
    address = ctypes.addressof(source)
    library = ctypes.CDLL(None, use_errno=True)
    reader, writer = os.pipe()
    other = os.fork()
    if other == 0:
        os.close(writer)
        os.read(reader, 1)  # stays until the reader of its memory is done
        os._exit(0)
    probe = os.fork()
    if probe == 0:
        code = 255
        try:
            code = _read(library, other, address)
        finally:
            os._exit(code)
    _, status = os.waitpid(probe, 0)
    os.close(writer)
    os.close(reader)
    os.waitpid(other, 0)
    return os.waitstatus_to_exitcode(status)


def _read(library: ctypes.CDLL, pid: int, address: int) -> int:
    class Span(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    target = ctypes.create_string_buffer(len(_WORD))
    local = Span(ctypes.addressof(target), len(_WORD))
    remote = Span(address, len(_WORD))
    read = library.process_vm_readv(
        pid, ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), 0
    )
    if read != len(_WORD):
        return ctypes.get_errno() or 255
    return 0 if target.raw == _WORD else 255


def _supports_cma(mpirun: Mpirun, environ: Mapping[str, str]) -> bool:
    info = Path(mpirun.path).with_name("ompi_info")
    if not info.is_file() or platform.system() != "Linux":
        return True  # it cannot be asked; the measurement tells in the end
    words = ["--parsable", "--param", "btl", "vader", "--level", "9"]
    return "cma" in answer([str(info), *words], environ) or "smsc: cma" in answer(
        [str(info)], environ
    )


def _scope() -> int:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):  # a kernel without Yama
        return 0


def _look_at_segments() -> Finding:
    topic = "shared segments"
    if not _SEGMENTS.is_dir():
        return Finding(topic, "note", f"there is no {_SEGMENTS}; files in TMPDIR are used instead")
    room = shutil.disk_usage(_SEGMENTS).free
    text = f"{room / 1e9:.1f} GB free in {_SEGMENTS}"
    facts = {"free_bytes": room}
    if room >= _ROOM:
        return Finding(topic, "ok", text, facts=facts)
    return Finding(
        topic,
        "note",
        f"only {text}, which many ranks use up",
        fix="in a container: --shm-size=1g; else remove what ended jobs have left there",
        facts=facts,
    )
