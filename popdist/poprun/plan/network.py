"""Variables by which mpirun finds its way between hosts: networks, ssh, Slurm. Pure."""

from __future__ import annotations

from popdist.contract import natural
from popdist.errors import UsageError
from popdist.poprun.machines.ssh import QUIET, STRICT, is_ssh_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.locate import Dialect

_BETWEEN_INSTANCES = "OMPI_MCA_btl_tcp_if_include"
_OCTETS = 4
_HIGHEST_OCTET = 255
_LONGEST_INTERFACE = 15  # Linux has no longer names


def network_variables(job: Job, dialect: Dialect, environ: Mapping[str, str]) -> dict[str, str]:
    """What mpirun is told, where the user has not told it already.

    Args:
        job: The job.
        dialect: What the mpirun understands.
        environ: The launcher's environment, whose variables win over these.

    Returns:
        Variables for mpirun's environment; its options on the command line win over them.

    Raises:
        UsageError: ``--host-subnet`` is no list of networks.
    """
    if job.is_local:
        # A job on one machine needs no help from Slurm, and must not spread over other hosts.
        inside = job.allocation is not None
        return dict.fromkeys(dialect.scheduler_variables, "^slurm") if inside else {}
    found: dict[str, str] = {}
    if job.reach.host_subnet is not None:
        _check_networks(job.reach.host_subnet)
        found = dict.fromkeys((dialect.control_network, _BETWEEN_INSTANCES), job.reach.host_subnet)
    if not is_ssh_set(job.global_args, environ):
        found[dialect.ssh_variable] = " ".join((*QUIET, *STRICT))
    return found


def _check_networks(text: str) -> None:
    for network in text.split(","):
        if not (_is_subnet(network) or _is_interface(network)):
            raise UsageError(
                "PD100",
                "--host-subnet is no list of networks",
                value=text,
                accepted="subnets or names of interfaces, with commas: 10.1.0.0/16 or eth0,ib0",
            )


def _is_subnet(text: str) -> bool:
    address, _, bits = text.partition("/")
    numbers = [natural(part) for part in address.split(".")]
    length = natural(bits)
    return (
        len(numbers) == _OCTETS
        and all(number is not None and number <= _HIGHEST_OCTET for number in numbers)
        and length is not None
        and length <= _OCTETS * 8
    )


def _is_interface(text: str) -> bool:
    plain = text.replace("_", "a").replace(".", "a").replace("-", "a").replace(":", "a")
    return (
        len(text) <= _LONGEST_INTERFACE
        and plain.isascii()
        and plain.isalnum()
        and text[0].isalpha()
    )
