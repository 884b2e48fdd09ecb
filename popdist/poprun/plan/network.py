"""Variables by which mpirun finds its way between hosts: networks, ssh, Slurm. Pure."""

from __future__ import annotations

from popdist.poprun.machines.ssh import QUIET, STRICT, is_ssh_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.locate import Dialect

_BETWEEN_INSTANCES = "OMPI_MCA_btl_tcp_if_include"


def network_variables(job: Job, dialect: Dialect, environ: Mapping[str, str]) -> dict[str, str]:
    """What mpirun is told, where the user has not told it already.

    Args:
        job: The job.
        dialect: What the mpirun understands.
        environ: The launcher's environment, whose variables win over these.

    Returns:
        Variables for mpirun's environment; its options on the command line win over them.
    """
    if job.is_local:
        # A job on one machine needs no help from Slurm, and must not spread over other hosts.
        inside = job.allocation is not None
        return dict.fromkeys(dialect.scheduler_variables, "^slurm") if inside else {}
    found: dict[str, str] = {}
    if job.reach.host_subnet is not None:
        found = dict.fromkeys((dialect.control_network, _BETWEEN_INSTANCES), job.reach.host_subnet)
    if not is_ssh_set(job.global_args, environ):
        found[dialect.ssh_variable] = " ".join((*QUIET, *STRICT))
    return found
