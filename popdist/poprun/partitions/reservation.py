"""Reserves devices for a job: finds or makes the partition, and takes what it needs of it."""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep

from popdist.errors import LaunchError
from popdist.poprun.partitions.clusters import Device, allowed_devices, find_cluster
from popdist.poprun.partitions.holds import is_taken, note_of, take
from popdist.poprun.partitions.owners import this_process
from popdist.poprun.partitions.pool import Partition, Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.log import Log
    from popdist.poprun.partitions.clusters import Cluster
    from popdist.poprun.partitions.request import Wish

_BETWEEN_TRIES_S = 0.05
_LOCK_PATIENCE_S = 10.0
_NOTED = 200


class Reservation:
    """Devices that a job has until it ends.

    Attributes:
        partition: The partition's name.
        devices: The devices.
        folder: The folder of their files.
        token: What the job's guards show.
    """

    def __init__(
        self, pool: Pool, partition: Partition, devices: Sequence[Device], fds: Sequence[int]
    ) -> None:
        self._pool = pool
        self._fds = fds
        self.partition = partition.name
        self.devices = tuple(devices)
        self.folder = pool.devices
        self.token = ""

    def release(self) -> None:
        """Gives the devices back, and removes the partition if it was made for this job."""
        for fd in self._fds:
            os.close(fd)
        with self._pool as pool:
            mine = pool.partitions().get(self.partition)
            if mine is not None and mine.owner == this_process() and not pool.in_use(mine):
                pool.remove(mine.name)
            pool.evict()


class _Busy(Exception):  # noqa: N818 - not an error yet: time may help
    """Devices are in use; the text says by whom."""


def reserve(wish: Wish, environ: Mapping[str, str], log: Log) -> Reservation:
    """Reserves devices.

    Args:
        wish: What the job wants.
        environ: The launcher's environment.
        log: For the launcher's messages.

    Returns:
        The reservation.

    Raises:
        LaunchError: There are no such devices, the partition is not what the job needs, or its
            devices stayed in use for as long as the job was willing to wait.
    """
    pool = Pool(environ, max(wish.timeout, _LOCK_PATIENCE_S))
    until = monotonic() + wish.timeout
    attempts = wish.attempts
    waited = False
    while True:
        try:
            with pool:
                return _try(pool, wish, log)
        except _Busy as busy:
            if monotonic() >= until:
                raise _in_use(wish, str(busy)) from None
            if not waited:
                log.info(f"Waiting for devices: {busy}")
                waited = True
        except LaunchError as error:
            attempts -= 1
            if error.code != "PD133" or attempts < 1:
                raise
            log.info(f"{error.what}; trying again")
        sleep(_BETWEEN_TRIES_S)


def _try(pool: Pool, wish: Wish, log: Log) -> Reservation:
    for name in pool.evict():
        log.info(f"Evicted partition {name}, whose launcher has ended")
    partitions = pool.partitions()
    name = _name(wish, partitions)
    known = partitions.get(name)
    if known is None:
        partition, cluster = _create(pool, name, wish, partitions)
        log.info(f"Created partition {name}: {len(partition.devices)} devices of {cluster.name}")
    else:
        log.info(f"Partition {name} exists: {len(known.devices)} devices of {known.cluster}")
        cluster = find_cluster(known.cluster)
        partition = _fit(pool, known, cluster, wish, partitions)
        if wish.resets and (used := pool.in_use(partition)):
            raise _Busy(f"a reset of {name} needs all of it, and {_users(pool, used)}")
    try:
        devices = _verify(pool.partitions()[name], cluster, wish)
        return _take(pool, partition, devices, wish)
    except BaseException:
        if known is None:
            pool.remove(name)
        raise


def _name(wish: Wish, partitions: Mapping[str, Partition]) -> str:
    if wish.name is not None:
        return wish.name
    if len(partitions) == 1:
        return next(iter(partitions))
    raise LaunchError(
        "PD130",
        "the job names no partition, and there is not exactly one",
        value=", ".join(partitions) or "no partition",
        accepted="--vipu-partition, which creates one that does not exist",
        hint="--vipu-partition=mine",
    )


def _create(
    pool: Pool, name: str, wish: Wish, partitions: Mapping[str, Partition]
) -> tuple[Partition, Cluster]:
    cluster = find_cluster(wish.cluster)
    free = _unassigned(cluster, partitions)
    allowed = len(allowed_devices(cluster))
    if allowed < wish.devices:
        raise LaunchError(
            "PD130",
            f"the partition needs more devices than there are in {cluster.name}",
            value=f"{wish.devices} devices (replicas x --ipus-per-replica), {allowed} there",
            accepted=f"at most {allowed}",
            hint="fewer replicas, --vipu-allocation=cores-<n> to divide the cores into more, or "
            "--offline-mode=yes to leave devices alone",
        )
    if len(free) < wish.devices:
        others = sorted({p.name for p in partitions.values() if p.cluster == cluster.name})
        raise _Busy(
            f"{len(free)} devices of {cluster.name} are in no partition, {wish.devices} are "
            f"needed; the others are in {', '.join(others)}"
        )
    chosen = tuple(device.name for device in free[: wish.devices])
    owner = this_process() if wish.removes else None
    partition = Partition(name, cluster.name, chosen, owner, dict(wish.attributes))
    pool.store(partition)
    return partition, cluster


def _unassigned(cluster: Cluster, partitions: Mapping[str, Partition]) -> list[Device]:
    for other in partitions.values():
        if other.cluster.partition("-")[0] == cluster.kind and other.cluster != cluster.name:
            raise LaunchError(
                "PD130",
                f"partition {other.name} divides the {cluster.kind} of this machine in another way",
                value=f"{cluster.name} wanted, {other.cluster} there",
                accepted=f"{other.cluster} while that partition exists",
                hint=f"--vipu-allocation={other.cluster}",
            )
    assigned = {name for partition in partitions.values() for name in partition.devices}
    return [device for device in allowed_devices(cluster) if device.name not in assigned]


def _fit(
    pool: Pool,
    known: Partition,
    cluster: Cluster,
    wish: Wish,
    partitions: Mapping[str, Partition],
) -> Partition:
    """The existing partition as the job needs it, changed where the user allows it."""
    wrong = []
    if wish.cluster is not None and find_cluster(wish.cluster).name != cluster.name:
        raise _unlike(known.name, [f"it is of {cluster.name}, not of {wish.cluster}"], None)
    if len(known.devices) < wish.devices:
        wrong.append(f"it has {len(known.devices)} devices, the job needs {wish.devices}")
    wrong += [
        f"its {name} is {known.attributes.get(name, 'not set')}, not {value}"
        for name, value in wish.attributes.items()
        if known.attributes.get(name) != value
    ]
    if not wrong:
        return known
    if not wish.updates:
        raise _unlike(known.name, wrong, "--update-partition=yes")
    changes = {**known.attributes, **wish.attributes}
    if changes != known.attributes and (used := pool.in_use(known)):
        raise _Busy(f"{known.name} cannot be changed while {_users(pool, used)}")
    missing = max(0, wish.devices - len(known.devices))
    free = _unassigned(cluster, partitions)[:missing]
    if len(free) < missing:
        raise _Busy(f"{known.name} needs {missing} more devices, and {len(free)} are in none")
    devices = (*known.devices, *(device.name for device in free))
    updated = Partition(known.name, known.cluster, devices, known.owner, changes)
    pool.store(updated)
    return updated


def _verify(stored: Partition, cluster: Cluster, wish: Wish) -> list[Device]:
    """Looks at the final state: what is stored is what was wanted, and its devices are there."""
    there = {device.name: device for device in cluster.devices}
    lost = [name for name in stored.devices if name not in there]
    wrong = [f"{', '.join(lost)} are not there any more"] if lost else []
    if len(stored.devices) < wish.devices:
        wrong.append(f"it has {len(stored.devices)} devices instead of {wish.devices}")
    wrong += [
        f"its {name} is not {value}"
        for name, value in wish.attributes.items()
        if stored.attributes.get(name) != value
    ]
    if wrong:
        raise _unlike(stored.name, wrong, f"poprun partitions remove {stored.name}")
    return [there[name] for name in stored.devices]


def _take(pool: Pool, partition: Partition, devices: Sequence[Device], wish: Wish) -> Reservation:
    allowed = {device.name for device in allowed_devices(find_cluster(partition.cluster))}
    free = [
        device
        for device in devices
        if device.name in allowed and not is_taken(pool.device_file(device.name))
    ]
    if len(free) < wish.devices:
        used = [device.name for device in devices if device not in free]
        raise _Busy(
            f"{len(free)} of the {len(devices)} devices of {partition.name} are free, "
            f"{wish.devices} are needed; {_users(pool, used)}"
        )
    token = os.urandom(16).hex()
    note = f"PID {os.getpid()}: {' '.join(sys.argv)}".replace("\n", " ")[:_NOTED]
    fds: list[int] = []
    for device in _neighbours(free, wish.devices):
        fd = take(pool.device_file(device.name), token, note)
        assert fd is not None  # noqa: S101 - it was free, and nobody else has the pool's lock
        fds.append(fd)
    reservation = Reservation(pool, partition, _neighbours(free, wish.devices), fds)
    reservation.token = token
    return reservation


def _neighbours(free: Sequence[Device], count: int) -> Sequence[Device]:
    """Devices side by side where there are as many, else the first that are free."""
    for start in range(len(free) - count + 1):
        run = free[start : start + count]
        if run[-1].number - run[0].number == count - 1:
            return run
    return free[:count]


def _users(pool: Pool, names: Sequence[str]) -> str:
    notes = sorted({note_of(pool.device_file(name)) for name in names} - {""})
    return f"{', '.join(names)} are in use by {'; '.join(notes) or 'another launch'}"


def _in_use(wish: Wish, why: str) -> LaunchError:
    return LaunchError(
        "PD131",
        f"no devices came free within {wish.timeout:g} s",
        value=why,
        accepted=f"{wish.devices} free devices",
        hint="wait longer (--vipu-server-timeout), see who has them (poprun partitions), or take "
        "another partition",
    )


def _unlike(name: str, wrong: Sequence[str], hint: str | None) -> LaunchError:
    return LaunchError(
        "PD133", f"partition {name} is not what the job needs", value="; ".join(wrong), hint=hint
    )
