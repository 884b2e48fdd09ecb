"""Tells every instance which of the reserved devices are its own. Pure."""

from __future__ import annotations

from popdist.poprun.machines.cpus import format_list, parse_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.partitions.clusters import Device
    from popdist.poprun.partitions.reservation import Reservation
    from popdist.poprun.plan.placement import Instance


def assign(
    instances: Sequence[Instance], reservation: Reservation, timeout: float
) -> tuple[Instance, ...]:
    """Deals the devices out in consecutive runs, as replicas are.

    Args:
        instances: The placed instances.
        reservation: The devices, as many as all replicas need.
        timeout: Seconds that requests about the partition may take.

    Returns:
        The instances, with their devices.
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
        assigned.append(
            one.having(
                fields={**one.fields, "device_id": own[0].number},
                devices=format_list(device.number for device in own),
                cpus=format_list({cpu for device in own for cpu in parse_list(device.cpus)}),
                variables={**one.variables, **common, **_visible(own)},
                holds=(
                    f"pool={reservation.folder}",
                    f"devices={','.join(device.name for device in own)}",
                    f"hold={reservation.token}",
                ),
            )
        )
    return tuple(assigned)


def _visible(devices: Sequence[Device]) -> dict[str, str]:
    """CUDA shows a program these GPUs only, and numbers them from 0 on."""
    names = [device.uuid or str(device.number) for device in devices if not device.cpus]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)} if names else {}
