"""Reserves devices for a job in a partition, and assigns the devices to instances."""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep

from popdist.errors import LaunchError
from popdist.poprun.log import say
from popdist.poprun.partitions.devices import Device, allowed_devices, find_cluster
from popdist.poprun.partitions.fitting import (
    BusyError,
    create_partition,
    fit_partition,
    users_of,
    verify_partition,
)
from popdist.poprun.partitions.pool import Partition, Pool, Preview, this_process
from popdist.poprun.protocol.device_locks import is_taken, take
from popdist.poprun.protocol.guard_argv import format_list, parse_list
from popdist.poprun.secrets import hide_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.log import Log
    from popdist.poprun.partitions.fitting import PartitionRequest
    from popdist.poprun.plan.placement import Instance


_BETWEEN_TRIES_S = 0.05
_LOCK_PATIENCE_S = 10.0
_SILENCE_S = 1.0
_NOTED = 200


class Reservation:
    """Devices that a job holds until the job ends.

    Args:
        pool: The pool, locked by the caller.
        partition: The partition's name.
        devices: Devices that are free.
        token: The token that the job's guards present.

    Attributes:
        partition: The partition's name.
        devices: The devices.
        folder: The folder of the device files.
        token: The token that the job's guards present.
    """

    def __init__(self, pool: Pool, partition: str, devices: Sequence[Device], token: str) -> None:
        note = f"PID {os.getpid()}: {' '.join(hide_words(sys.argv))}".replace("\n", " ")[:_NOTED]
        taken = [take(pool.device_file(device.name), token, note) for device in devices]
        self._pool = pool
        self._fds = [fd for fd in taken if fd is not None]
        self.partition = partition
        self.devices = tuple(devices)
        self.folder = pool.devices
        self.token = token

    def release(self) -> None:
        """Releases the devices, and removes the partition if it was made for this job."""
        for fd in self._fds:
            os.close(fd)
        with self._pool as pool:
            mine = pool.partitions().get(self.partition)
            if mine is not None and mine.owner == this_process() and not pool.in_use(mine):
                pool.remove(mine.name)
            pool.evict()


def reserve(request: PartitionRequest, environ: Mapping[str, str], log: Log) -> Reservation:
    """Reserves devices, and waits for devices in use for up to the job's timeout.

    Raises:
        LaunchError: There are no such devices, the partition is not what the job needs, or its
            devices stayed in use for as long as the job was willing to wait.
    """
    return _reserve(Pool(environ, max(request.timeout, _LOCK_PATIENCE_S)), request, log)


def preview(request: PartitionRequest, environ: Mapping[str, str], log: Log) -> Reservation:
    """As `reserve`, for a dry run: partitions stay as they are.

    Raises:
        LaunchError: As `reserve` raises it.
    """
    return _reserve(Preview(environ, max(request.timeout, _LOCK_PATIENCE_S)), request, log)


def _reserve(pool: Pool, request: PartitionRequest, log: Log) -> Reservation:
    until = monotonic() + request.timeout
    attempts = request.attempts
    told, tell_at = False, monotonic() + _SILENCE_S
    while True:
        try:
            with pool:
                return _try(pool, request, log)
        except BusyError as busy:
            if monotonic() >= until:
                raise _in_use(request, str(busy)) from None
            if not told and monotonic() >= tell_at:
                say(f"poprun: waiting for devices, {request.timeout:g} s at most: {busy}")
                told = True
        except LaunchError as error:
            attempts -= 1
            if error.code != "PD133" or attempts < 1:
                raise
            log.info(f"{error.what}; trying again")
        sleep(_BETWEEN_TRIES_S)


def _try(pool: Pool, request: PartitionRequest, log: Log) -> Reservation:
    for name in pool.evict():
        log.info(f"Evicted partition {name}, whose launcher has ended")
    partitions = pool.partitions()
    name = _name(request, partitions)
    known = partitions.get(name)
    if known is None:
        partition, cluster = create_partition(pool, name, request, partitions)
        log.info(f"Created partition {name}: {len(partition.devices)} devices of {cluster.name}")
    else:
        log.info(f"Partition {name} exists: {len(known.devices)} devices of {known.cluster}")
        cluster = find_cluster(known.cluster)
        partition = fit_partition(pool, known, cluster, request, partitions)
        if request.resets and (used := pool.in_use(partition)):
            raise BusyError(f"a reset of {name} needs all of it, and {users_of(pool, used)}")
    try:
        devices = verify_partition(pool.partitions()[name], cluster, request)
        return _take(pool, partition, devices, request)
    except BaseException:
        if known is None:
            pool.remove(name)
        elif known != partition:
            pool.store(known)
        raise


def _name(request: PartitionRequest, partitions: Mapping[str, Partition]) -> str:
    if request.name is not None:
        return request.name
    if len(partitions) == 1:
        return next(iter(partitions))
    raise LaunchError(
        "PD130",
        "the job names no partition, and there is not exactly one",
        value=", ".join(partitions) or "no partition",
        accepted="--vipu-partition, which creates one that does not exist",
        hint="--vipu-partition=mine",
    )


def _take(
    pool: Pool, partition: Partition, devices: Sequence[Device], request: PartitionRequest
) -> Reservation:
    allowed = {
        device.name for device in allowed_devices(find_cluster(partition.cluster), request.visible)
    }
    free = [
        device
        for device in devices
        if device.name in allowed and not is_taken(pool.device_file(device.name))
    ]
    if len(free) < request.devices:
        used = [device.name for device in devices if device not in free]
        raise BusyError(
            f"{len(free)} of the {len(devices)} devices of {partition.name} are free, "
            f"{request.devices} are needed; {users_of(pool, used)}"
        )
    return Reservation(
        pool, partition.name, _neighbours(free, request.devices), os.urandom(16).hex()
    )


def _neighbours(free: Sequence[Device], count: int) -> Sequence[Device]:
    """Devices with consecutive numbers where possible, else the first free devices."""
    for start in range(len(free) - count + 1):
        run = free[start : start + count]
        if run[-1].number - run[0].number == count - 1:
            return run
    return free[:count]


def _in_use(request: PartitionRequest, why: str) -> LaunchError:
    return LaunchError(
        "PD131",
        f"no devices came free within {request.timeout:g} s",
        value=why,
        accepted=f"{request.devices} free devices",
        hint="wait longer (--vipu-server-timeout), see who has them (poprun partitions), or take "
        "another partition",
    )


# The assignment of devices to instances. Pure.


def assign(
    instances: Sequence[Instance], reservation: Reservation, timeout: float
) -> tuple[Instance, ...]:
    """Assigns devices to instances in consecutive runs, in the order of the replicas.

    ``timeout`` is in seconds and is passed to the programs.
    """
    common = {
        "IPUOF_VIPU_API_PARTITION_ID": reservation.partition,
        "IPUOF_VIPU_API_TIMEOUT": f"{timeout:g}",
    }
    assigned, first = [], 0
    for one in instances:
        count = one.num_local_replicas * int(one.fields["num_ipus_per_replica"])
        own = reservation.devices[first : first + count]
        first += count
        visible = _visible(own)
        assigned.append(
            one.having(
                # Where CUDA sees these GPUs alone, CUDA numbers them from 0.
                fields={**one.fields, "device_id": 0 if visible else own[0].number},
                devices=format_list(device.number for device in own),
                cpus=format_list({cpu for device in own for cpu in parse_list(device.cpus)}),
                variables={**one.variables, **common, **visible},
                holds=(
                    f"pool={reservation.folder}",
                    f"devices={','.join(device.name for device in own)}",
                    f"hold={reservation.token}",
                ),
            )
        )
    return tuple(assigned)


def _visible(devices: Sequence[Device]) -> dict[str, str]:
    """The variable that limits CUDA to these GPUs; nothing for cores."""
    names = [device.uuid or str(device.number) for device in devices if not device.cpus]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)} if names else {}
