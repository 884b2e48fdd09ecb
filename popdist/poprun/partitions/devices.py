"""The devices of this machine: GPUs, or sets of cores that stand for devices.

Names of clusters are ``gpus``, ``cores`` (a device per core), and ``cores-<n>`` (the cores divided
into n devices; with more devices than cores, several devices share a core).
"""

from __future__ import annotations

import os

from popdist.contract import natural
from popdist.errors import LaunchError
from popdist.poprun.machines.cpus import group_cores, usable_cpus
from popdist.poprun.protocol.guard_argv import format_list, parse_list
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_GPUS = "proc/driver/nvidia/gpus"
_MOST_DEVICES = 4096


class Device(Record):
    """A device.

    Attributes:
        name: The name on this machine, such as ``core3``.
        number: The number in the cluster.
        cpus: The device's processors in the kernel's list format; empty for a GPU.
        uuid: CUDA's UUID of the GPU; empty for cores.
    """

    name: str
    number: int
    cpus: str = ""
    uuid: str = ""


class Cluster(Record):
    """All devices of one kind.

    Attributes:
        name: The full name, such as ``cores-4``.
        kind: The kind of the devices: ``gpus`` or ``cores``.
        devices: The devices in the order of their numbers.
    """

    name: str
    kind: str
    devices: tuple[Device, ...]


def find_cluster(name: str | None, root: str = "/") -> Cluster:
    """Finds a cluster; None is the GPUs, or the cores on a machine without GPUs.

    Raises:
        LaunchError: No cluster has this name.
    """
    kind, dash, count = (name or "").partition("-")
    number = natural(count) if dash else None
    if name in (None, "gpus"):
        gpus = _gpus(root)
        if gpus:
            return Cluster("gpus", "gpus", gpus)
    if name is None or (kind == "cores" and (not dash or number)):
        return _cores(root, number)
    accepted = "gpus, cores (a device per core), or cores-<n> (the cores as n devices)"
    if name == "gpus":
        raise LaunchError(
            "PD130",
            "this machine has no GPUs",
            value=name,
            accepted=accepted,
            hint="--vipu-allocation=cores",
        )
    raise LaunchError(
        "PD130",
        "this machine has no such allocation or cluster",
        value=name,
        accepted=accepted,
        hint="leave --vipu-allocation and --vipu-cluster out for this machine's own devices",
    )


def allowed_devices(cluster: Cluster, visible: str | None) -> tuple[Device, ...]:
    """The devices that this process may use: cores within its cpuset, GPUs in ``visible``.

    ``visible`` has the format of ``CUDA_VISIBLE_DEVICES``: numbers or UUIDs, None for all.
    """
    mine = usable_cpus()
    return tuple(
        device
        for device in cluster.devices
        if mine.issuperset(parse_list(device.cpus))
        and (device.cpus or _is_visible(device, visible))
    )


def _is_visible(device: Device, visible: str | None) -> bool:
    if visible is None:
        return True
    seen = [part.strip() for part in visible.split(",")]
    return str(device.number) in seen or any(part and device.uuid.startswith(part) for part in seen)


def _cores(root: str, number: int | None) -> Cluster:
    # All online processors, not only this process's: every launch must number devices alike.
    online = parse_list(_read(os.path.join(root, "sys/devices/system/cpu/online")))
    cores = group_cores(online or sorted(usable_cpus()), root)
    count = len(cores) if number is None else number
    if count > _MOST_DEVICES:
        raise LaunchError(
            "PD130",
            "the cores cannot be divided into so many devices",
            value=count,
            accepted=f"at most {_MOST_DEVICES}",
        )
    devices = [
        Device(f"core{index}", index, cpus=format_list(_cpus_of(cores, index, count)))
        for index in range(count)
    ]
    return Cluster(f"cores-{count}", "cores", tuple(devices))


def _cpus_of(cores: Sequence[tuple[int, ...]], index: int, count: int) -> list[int]:
    if count > len(cores):
        return list(cores[index % len(cores)])
    own = cores[index * len(cores) // count : (index + 1) * len(cores) // count]
    return [cpu for core in own for cpu in core]


def _gpus(root: str) -> tuple[Device, ...]:
    """NVIDIA GPUs that the driver lists and this process can open; a container may list more."""
    found: list[tuple[int, str]] = []
    try:
        folders = sorted(os.listdir(os.path.join(root, _GPUS)))
    except OSError:
        folders = []
    for folder in folders:
        facts = {}
        for line in _read(os.path.join(root, _GPUS, folder, "information")).splitlines():
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
        minor = natural(facts.get("Device Minor", ""))
        if minor is not None and _can_open(os.path.join(root, f"dev/nvidia{minor}")):
            found.append((minor, facts.get("GPU UUID", "")))
    return tuple(
        Device(f"gpu{minor}", number, uuid=uuid) for number, (minor, uuid) in enumerate(found)
    )


def _can_open(path: str) -> bool:
    """Whether the device file opens; a control group may forbid a device that is listed."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
