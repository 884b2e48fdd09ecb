"""Makes sure that the other hosts of a job can take part, with what the user allows to be done."""

from __future__ import annotations

from popdist.poprun.machines.preflight import ask_hosts
from popdist.poprun.machines.provide import copy_environment, copy_key
from popdist.poprun.machines.reasons import unfit_hosts

_DENIED = {"denied"}
_UNLIKE = {"no python", "no popdist", "version", "no mpirun"}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.log import Log
    from popdist.poprun.machines.cpus import Node
    from popdist.poprun.plan.requests import Reach


def reach_hosts(
    hosts: Sequence[str], ssh: Sequence[str], mpirun: str, reach: Reach, log: Log
) -> dict[str, tuple[Node, ...]]:
    """Looks at the hosts, and repairs what the user has allowed to.

    Args:
        hosts: Their names, without this machine's.
        ssh: The words that start a command on a host, up to its name.
        mpirun: The path of mpirun, which must be the same there.
        reach: What the user allows.
        log: For the launcher's messages.

    Returns:
        The usable NUMA nodes of each host.

    Raises:
        LaunchError: Some cannot take part; it says which and why.
    """
    log.info(f"Looking at {len(hosts)} other hosts over ssh")
    nodes, reasons = ask_hosts(hosts, ssh, mpirun)
    for wanted, kinds, repair in (
        (reach.distribute_ssh_key, _DENIED, copy_key),
        (reach.synchronise_python_venv, _UNLIKE, copy_environment),
    ):
        found = [host for host, reason in reasons.items() if reason.kind in kinds]
        if wanted and found:
            repair(found, ssh, log)
            more, still = ask_hosts(found, ssh, mpirun)
            nodes.update(more)
            reasons = {
                host: still.get(host, reason)
                for host, reason in reasons.items()
                if host not in found or host in still
            }
    if reasons:
        raise unfit_hosts(reasons, len(hosts))
    return nodes
