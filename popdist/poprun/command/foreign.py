"""Options of other launchers that poprun has by another name, or does without."""

from __future__ import annotations

_THROUGH = "mpirun takes it: --mpi-global-args="
_INSTEAD = {
    "check-build": "this is horovodrun's; here it is: poprun doctor",
    "cycle-time-ms": "this is horovodrun's; here it is: -x HOROVOD_CYCLE_TIME=...",
    "fusion-threshold-mb": "this is horovodrun's; here it is: -x HOROVOD_FUSION_THRESHOLD=...",
    "gloo": "this is horovodrun's; leave it out, as poprun always uses MPI",
    "start-timeout": "this is horovodrun's; leave it out: hosts are looked at before the start",
    "timeline-filename": "this is horovodrun's; here it is: --timeline FILE",
    "nnodes": "this is torchrun's; here it is: --host HOST1,HOST2, on one of the hosts",
    "node-rank": "this is torchrun's; leave it out: poprun starts the instances on all hosts",
    "nproc-per-node": "this is torchrun's; here it is: -np N, for all hosts together",
    "standalone": "this is torchrun's; leave it out",
    "bind-to": f"{_THROUGH}'--bind-to ...'",
    "map-by": f"{_THROUGH}'--map-by ...'",
    "mca": f"{_THROUGH}'--mca NAME VALUE'",
    "oversubscribe": "this is mpirun's; leave it out: what you ask for is started",
}


def instead_of(name: str) -> str | None:
    """What to write for an option of mpirun, horovodrun or torchrun.

    Args:
        name: The option, as it was written.

    Returns:
        A hint, or None where no launcher is known to have the option.
    """
    return _INSTEAD.get(name.lstrip("-").replace("_", "-"))
