"""The address and the free ports with which instances of a job connect."""

from __future__ import annotations

import os

from popdist.contract import TOTAL
from popdist.errors import LaunchError, UsageError
from popdist.poprun.protocol.guard_argv import CLUSTER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance

_LOWEST = 15000
_HIGHEST = 32767
_ATTEMPTS = 200
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
_LONGEST = 128 * 1024 - 4096
"""The kernel's limit for one variable, less room for the text around the list of workers."""


def rendezvous(
    job: Job, instances: Sequence[Instance], environ: Mapping[str, str]
) -> dict[str, str]:
    """Chooses the variables that every instance gets with the same value.

    An address and a port in ``environ`` are kept, unless they belong to an enclosing job.

    Raises:
        LaunchError: This machine has no free ports.
        UsageError: The list of workers for TensorFlow does not fit into a variable.
    """
    own = {} if TOTAL in environ else environ
    found = {ADDRESS: own.get(ADDRESS) or _address(instances[0].host.name, job)}
    found[PORT] = own.get(PORT) or str(_find(1, "MASTER_PORT"))
    if job.tf_config:
        found[CLUSTER] = _workers(job, instances)
    return found


def _address(name: str, job: Job) -> str:
    """The address at which other instances reach a host."""
    if job.is_local:
        return "127.0.0.1"
    return os.uname().nodename if name in ("localhost", "127.0.0.1") else name


def _find(count: int, purpose: str) -> int:
    port = find_ports(count)
    if port is None:
        raise LaunchError(
            "PD105",
            f"no free ports were found for {purpose}",
            value=count,
            hint="end programs that hold ports below 32768, or choose with MASTER_PORT=<port>",
        )
    return port


def _workers(job: Job, instances: Sequence[Instance]) -> str:
    most = max(int(one.fields["local_instance_index"]) for one in instances) + 1
    first = _find(most, "TF_CONFIG")
    text = ", ".join(
        f'"{_address(one.host.name, job)}:{first + int(one.fields["local_instance_index"])}"'
        for one in instances
    )
    if len(text) > _LONGEST:
        raise UsageError(
            "PD101",
            "the list of workers in TF_CONFIG would be longer than a variable can be",
            value=f"{len(instances)} instances",
            accepted=f"a list of at most {_LONGEST} characters",
            hint="leave out --tf-config; Horovod and popdist's strategies need no such list",
        )
    return text


def find_ports(count: int, is_free: Callable[[int], bool] | None = None) -> int | None:
    """Finds consecutive free ports; returns the first port, or None.

    The ports are below the kernel's ephemeral range, so no connection can get one of the ports
    between this check and the program's start. ``is_free`` replaces the test of a port.
    """
    is_free = is_free or port_is_free
    lowest, highest = _range()
    span = highest - lowest + 2 - count
    if span < 1:
        return None
    for _ in range(_ATTEMPTS):
        first = lowest + int.from_bytes(os.urandom(4), "big") % span
        if all(is_free(first + i) for i in range(count)):
            return first
    return None


def _range() -> tuple[int, int]:
    try:
        with open(_EPHEMERAL, encoding="ascii") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first = _HIGHEST + 1
    # Where the ephemeral range includes low ports no range is safe; this range is tried.
    return _LOWEST, _HIGHEST if first <= _LOWEST + 1000 else min(_HIGHEST, first - 1)


def port_is_free(port: int) -> bool:
    """Whether a program could bind a port of this machine; the port is released at once."""
    import _socket  # `socket` adds enums and selectors, for 5 ms

    for family, address in ((_socket.AF_INET6, "::"), (_socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            probe = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:  # no IPv6 here
            continue
        try:
            probe.bind((address, port))
        except OSError:
            return False
        finally:
            probe.close()
    return True


_EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
