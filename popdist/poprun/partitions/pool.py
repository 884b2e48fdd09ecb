"""The partitions of this machine: files in a private folder, guarded by one lock."""

from __future__ import annotations

import fcntl
import json
import os

from popdist.errors import LaunchError
from popdist.poprun.protocol.device_locks import is_taken, lock_within
from popdist.poprun.protocol.processes import process_start
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self


class Owner(Record):
    """A process, identified so that a later process with the same PID differs.

    Attributes:
        pid: The process ID.
        start: The start time, in clock ticks since boot.
        boot: The kernel's ID of the boot.
    """

    pid: int
    start: str
    boot: str

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self.boot == _boot() and process_start(self.pid) == self.start


def this_process() -> Owner:
    """The calling process."""
    return Owner(os.getpid(), process_start(os.getpid()), _boot())


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


FOLDER_VARIABLE = "POPDIST_STATE_DIR"
_SUFFIX = ".partition"
_PRIVATE = 0o700


class Partition(Record):
    """A partition.

    Attributes:
        name: The partition's name.
        cluster: The cluster of the devices.
        devices: Names of the devices.
        owner: The launcher that made the partition for its own job; None for a permanent partition.
        attributes: V-IPU's routing and synchronisation types, and link domains.
    """

    name: str
    cluster: str
    devices: tuple[str, ...]
    owner: Owner | None = None
    attributes: Mapping[str, str] = {}


class Pool:
    """All partitions of this user on this machine.

    As a context, the pool holds its lock; partitions and devices are only read and changed inside.
    Devices are locked one by one (`popdist.poprun.protocol.device_locks`).

    Args:
        environ: The launcher's environment.
        patience: Seconds to wait for the lock.

    Attributes:
        devices: The folder of the device files.
    """

    def __init__(self, environ: Mapping[str, str], patience: float) -> None:
        self._folder = _folder(environ)
        self.devices = os.path.join(self._folder, "devices")
        self._patience = patience
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            _make_private(self._folder)
            _make_private(self.devices)
            fd = os.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
            locked = lock_within(fd, fcntl.LOCK_EX, self._patience)
        except OSError as error:
            raise LaunchError(
                "PD133",
                f"the files of the partitions cannot be used: {error.strerror}",
                value=self._folder,
                accepted="a folder that this user may write, on a file system with locks",
                hint=f"name another with {FOLDER_VARIABLE}",
            ) from None
        if not locked:
            os.close(fd)
            raise LaunchError(
                "PD131",
                "the partitions are locked by another launch that makes no progress",
                value=os.path.join(self._folder, "lock"),
                hint="fuser -v on that file shows which",
            )
        self._lock = fd
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    def device_file(self, name: str) -> str:
        """The path of the file whose lock is the device's lock."""
        return os.path.join(self.devices, name)

    def partitions(self) -> dict[str, Partition]:
        """All partitions by name.

        Raises:
            LaunchError: A file was not written by this module.
        """
        names = sorted(
            name.removesuffix(_SUFFIX)
            for name in os.listdir(self._folder)
            if name.endswith(_SUFFIX)
        )
        return {name: self._load(name) for name in names}

    def store(self, partition: Partition) -> None:
        """Writes a partition atomically: a reader finds the old state or the new state.

        Raises:
            LaunchError: The file cannot be written.
        """
        path = self._path(partition.name)
        record = {**vars(partition), "owner": partition.owner and vars(partition.owner)}
        try:
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(record, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)
        except OSError as error:
            raise LaunchError(
                "PD133",
                f"partition {partition.name} cannot be written: {error.strerror}",
                value=path,
                hint=f"name another folder with {FOLDER_VARIABLE}",
            ) from None

    def remove(self, name: str) -> None:
        """Removes a partition; a missing partition is not an error."""
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            pass

    def in_use(self, partition: Partition) -> list[str]:
        """Names of the partition's devices that a process holds."""
        return [name for name in partition.devices if is_taken(self.device_file(name))]

    def evict(self) -> list[str]:
        """Removes unused partitions whose launchers have ended; returns the names."""
        gone = [
            partition.name
            for partition in self.partitions().values()
            if partition.owner is not None
            and not partition.owner.is_alive
            and not self.in_use(partition)
        ]
        for name in gone:
            self.remove(name)
        return gone

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name + _SUFFIX)

    def _load(self, name: str) -> Partition:
        path = self._path(name)
        try:
            with open(path, encoding="utf-8") as file:
                record: dict[str, Any] = json.load(file)
            owner = record["owner"]
            return Partition(
                name=name,
                cluster=str(record["cluster"]),
                devices=tuple(map(str, record["devices"])),
                owner=None if owner is None else Owner(**owner),
                attributes={str(k): str(v) for k, v in record["attributes"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LaunchError(
                "PD133",
                f"the file of partition {name} cannot be read: {type(error).__name__}",
                value=path,
                accepted="a file that poprun has written",
                hint=f"rm {path}",
            ) from None


class Preview(Pool):
    """A pool that keeps changes in memory and writes nothing."""

    def __init__(self, environ: Mapping[str, str], patience: float) -> None:
        super().__init__(environ, patience)
        self._changed: dict[str, Partition | None] = {}

    def partitions(self) -> dict[str, Partition]:
        """All partitions by name, with the changes in memory."""
        found = {**super().partitions(), **self._changed}
        return {name: one for name, one in sorted(found.items()) if one is not None}

    def store(self, partition: Partition) -> None:
        """Keeps a partition in memory."""
        self._changed[partition.name] = partition

    def remove(self, name: str) -> None:
        """Marks a partition as removed."""
        self._changed[name] = None


def _folder(environ: Mapping[str, str]) -> str:
    home = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    base = environ.get(FOLDER_VARIABLE) or os.path.join(home, "popdist")
    # A home folder may be shared by many machines, whose devices are not.
    return os.path.join(os.path.abspath(base), "partitions", os.uname().nodename)


def _make_private(folder: str) -> None:
    os.makedirs(folder, mode=_PRIVATE, exist_ok=True)
    facts = os.stat(folder)
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise LaunchError(
            "PD133",
            "the folder of the partitions belongs to another user, or others may write there",
            value=folder,
            accepted="a folder of this user's own, with mode 700",
            hint=f"chmod 700 {folder}, or name another with {FOLDER_VARIABLE}",
        )
