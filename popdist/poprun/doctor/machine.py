"""Checks of the machine: processors, memory, limits, Slurm, ssh and shared memory."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.errors import PopdistError
from popdist.horovod_build.facts import answer, machine
from popdist.poprun.doctor.findings import Finding, problem_from
from popdist.poprun.machines.cpus import count_cores, cpu_quota, usable_cpus, usable_nodes
from popdist.poprun.machines.preflight import ask_hosts
from popdist.poprun.machines.ssh import ssh_words
from popdist.poprun.partitions.devices import find_cluster
from popdist.poprun.protocol.guard_argv import format_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from popdist.poprun.machines.find_mpirun import Mpirun


_LITTLE_MEMORY = 1 << 30
_FEW_FILES = 1024
_LIMITS = {
    "open files": (resource.RLIMIT_NOFILE, "ulimit -n 65536"),
    "processes": (resource.RLIMIT_NPROC, "ulimit -u unlimited"),
    "locked memory": (resource.RLIMIT_MEMLOCK, None),
    "stack": (resource.RLIMIT_STACK, None),
    "address space": (resource.RLIMIT_AS, "ulimit -v unlimited"),
}


def look_at_processors() -> Finding:
    """Checks the processors that this process may use, and the control group's quota."""
    cpus = usable_cpus()
    nodes, cores, quota = usable_nodes(cpus), count_cores(cpus), cpu_quota()
    text = f"{len(cpus)} CPUs ({format_list(cpus)}), {cores} cores, {len(nodes)} NUMA node(s)"
    if len(nodes) > 1:
        text += ": " + "; ".join(f"{node.index}: {format_list(node.cpus)}" for node in nodes)
    facts = {
        "cpus": sorted(cpus),
        "cores": cores,
        "quota": quota,
        "nodes": {node.index: sorted(node.cpus) for node in nodes},
    }
    if quota is not None and quota < len(cpus):
        return Finding(
            "processors",
            "note",
            f"{text}, but a control group grants the time of {quota} only",
            fix="more CPUs for the container or job; poprun counts threads by the grant",
            facts=facts,
        )
    return Finding("processors", "ok", text, facts=facts)


def look_at_devices() -> Finding:
    """Lists the devices for partitions."""
    cluster = find_cluster(None)
    text = f"{len(cluster.devices)} {cluster.kind}"
    if cluster.kind == "cores":
        text += ", which stand for devices, as there are no GPUs"
    return Finding(
        "devices of partitions", "ok", text, facts={"devices": [d.name for d in cluster.devices]}
    )


def look_at_memory() -> Finding:
    """Checks the memory that jobs can allocate now."""
    free = machine(Path.cwd()).available_memory
    text, facts = f"{free / 1e9:.1f} GB of memory free", {"available_bytes": free}
    if free < _LITTLE_MEMORY:
        fix = "end other programs, or raise the memory limit of the container or job"
        return Finding("memory", "note", f"only {text}", fix=fix, facts=facts)
    return Finding("memory", "ok", text, facts=facts)


def look_at_limits() -> Finding:
    """Checks the shell's resource limits."""
    soft = {name: resource.getrlimit(number)[0] for name, (number, _) in _LIMITS.items()}
    shown = {
        name: "unlimited" if value == resource.RLIM_INFINITY else value
        for name, value in soft.items()
    }
    text = ", ".join(f"{name} {value}" for name, value in shown.items())
    tight = [
        name
        for name in ("open files", "processes")
        if soft[name] != resource.RLIM_INFINITY and soft[name] < _FEW_FILES
    ]
    if soft["address space"] != resource.RLIM_INFINITY:
        tight.append("address space")
    if tight:
        fix = ", ".join(str(_LIMITS[name][1]) for name in tight)
        return Finding("limits", "note", f"{text}; tight: {', '.join(tight)}", fix=fix, facts=shown)
    return Finding("limits", "ok", text, facts=shown)


def look_at_slurm(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Checks the Slurm allocation; outside of an allocation there is no finding."""
    from popdist.poprun.machines.slurm import read_allocation

    try:
        found = read_allocation(environ)
    except PopdistError as error:
        yield problem_from("Slurm", error)
        return
    if found is not None:
        names = ", ".join(f"{host.name}:{host.slots}" for host in found.hosts)
        yield Finding("Slurm", "ok", f"job {found.job} has room for {found.slots} on {names}")


def look_at_ssh(
    hosts: Sequence[str], mpirun: Mpirun | None, environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Checks the ssh client and the named hosts: one finding for the client, one per host."""
    if shutil.which("ssh", path=environ.get("PATH")) is None:
        text = "there is no ssh client, which only jobs on several hosts need"
        fix = "apt install openssh-client, or what the system calls it"
        yield Finding("ssh", "problem", text, fix=fix) if hosts else Finding("ssh", "ok", text)
        return
    version = answer(["ssh", "-V"], environ).strip()
    keys = sorted(file.stem for file in Path("~/.ssh").expanduser().glob("id_*.pub"))
    known = f"keys {', '.join(keys)}" if keys else "no key in ~/.ssh"
    agent = ", an agent" if environ.get("SSH_AUTH_SOCK") else ""
    yield Finding("ssh", "ok", f"{version}; {known}{agent}", facts={"keys": keys})
    if not hosts or mpirun is None:
        return
    nodes, reasons = ask_hosts(hosts, ssh_words((), environ), mpirun.path)
    for host in hosts:
        if host in reasons:
            remedy = reasons[host].remedy.replace("{host}", host)
            yield Finding(f"host {host}", "problem", reasons[host].text, fix=remedy)
        else:
            there = f"{len(nodes[host])} NUMA node(s)" if host in nodes else "this machine"
            yield Finding(f"host {host}", "ok", f"same Python, popdist and Open MPI; {there}")


# Shared memory between ranks.

_SEGMENTS = Path("/dev/shm")  # noqa: S108 - where the kernel keeps shared memory, not a scratch file
_ROOM = 256 << 20
_WORD = b"popdist!"


def look_at_shared_memory(mpirun: Mpirun | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Tries a single copy between two processes, and checks the free space for shared segments."""
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
        # Open MPI requests an exception from the kernel; this probe does not.
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
    """Reads a sibling process's memory, as ranks of one machine do; returns 0 or the errno."""
    source = ctypes.create_string_buffer(_WORD, len(_WORD))
    address = ctypes.addressof(source)
    library = ctypes.CDLL(None, use_errno=True)
    reader, writer = os.pipe()
    other = os.fork()
    if other == 0:
        os.close(writer)
        os.read(reader, 1)  # waits until the other process has read the memory
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
        return True  # unknown here; the measurement decides
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
