"""The module for PopART programs: options and a device with the values of the launcher.

Where Graphcore's own ``popart`` is installed, its devices are used; elsewhere `popdist_onnx`'s.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from popdist.errors import ArgumentError
from popdist.popdist_core import getDeviceId, topology

if TYPE_CHECKING or find_spec("popart") is None:
    import popdist_onnx as _popart
else:
    import popart as _popart

__all__ = ["configureSessionOptions", "getDevice"]


def configureSessionOptions(opts: Any) -> None:  # noqa: N802 - published name
    """Tells session options which of the job's replicas this instance runs.

    Afterwards a plain ``TrainingSession`` with these options combines gradients over all replicas
    of all instances by itself.

    Args:
        opts: The options, changed in place.

    Raises:
        ArgumentError: The options have been given other replicas already.
    """
    here, given = topology(), opts.replicatedGraphCount
    replicas, in_job = here.num_local_replicas, here.num_total_replicas
    if given == here.compare_replicas > 1:
        # Alone in a comparison, a program may compute the replicas of the whole job.
        replicas = in_job = given
    wanted = {
        "enableReplicatedGraphs": replicas > 1,
        "replicatedGraphCount": replicas,
        "enableDistributedReplicatedGraphs": in_job > replicas,
        "globalReplicationFactor": in_job,
        "globalReplicaOffset": here.replica_index_offset,
    }
    if given not in {1, replicas}:
        raise ArgumentError(
            "PD004",
            "the options ask for another number of replicas than the launcher",
            value=given,
            accepted=str(here.num_local_replicas),
            hint="leave replicatedGraphCount to poprun --num-replicas",
        )
    for name, value in wanted.items():
        setattr(opts, name, value)


def getDevice(ipusPerReplica: int = 1) -> Any:  # noqa: N802, N803 - published name
    """The device of this instance.

    Args:
        ipusPerReplica: Devices that one replica uses; checked against the launcher's.

    Returns:
        A device; with ``poprun --offline-mode`` one that models are compiled for only.

    Raises:
        ArgumentError: The job was placed for another number of devices per replica.
    """
    here = topology()
    manager = _popart.DeviceManager()
    if here.offline:
        count = ipusPerReplica * here.num_local_replicas
        return manager.createOfflineIPUDevice({"numIPUs": count})
    return manager.acquireDeviceById(getDeviceId(ipusPerReplica))
