"""The mpirun command of a job: arguments and environment. Pure.

The environment configures mpirun between hosts (networks, ssh, Slurm), Horovod on one machine, and
the links between devices for programs.
"""

from __future__ import annotations

import os
import sys

from popdist.contract import natural, write
from popdist.errors import UsageError
from popdist.poprun.plan.command import Command, Context, guard_settings, timeline_file
from popdist.poprun.protocol.guard_argv import FRONT, STANDARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.machines.find_mpirun import Dialect, Mpirun
    from popdist.poprun.plan.command import Run
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance

TARGET_OPTIONS = "POPLAR_TARGET_OPTIONS"
"""The published variable that describes links to programs; all values are texts."""
_SAYS_SOMETHING = {"num-ilds", "ipu-link-routing-type", "gw-link-routing-type", "sync-type"}
_BETWEEN_INSTANCES = "OMPI_MCA_btl_tcp_if_include"
WITHOUT_TCP = {"OMPI_MCA_btl": "^tcp"}
"""Open MPI's setting for a job on one machine whose instances reach each other by shared memory.
With TCP, each would listen on a port of all addresses."""
_OCTETS = 4
_HIGHEST_OCTET = 255
_LONGEST_INTERFACE = 15  # Linux has no longer names
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that every instance gets by name, as the original launcher forwards them."""
ONE_HOST = {
    "HOROVOD_LARGEST_FUSED": "16384",
    "HOROVOD_CYCLE_TIME": "0.1",
}
"""Horovod's settings for a job on one machine, where the user has set none. The defaults suit a
network: inside one machine, copying larger tensors together costs more than it saves (the patch
``large-tensors-alone`` of `popdist.horovod_build.patches`; another Horovod ignores that variable),
and waiting a millisecond for more tensors dominates small exchanges (`python -m benchmarks --only
exchange`). No variable here may change the result of a call of Horovod: `tests/horovods_own` runs
Horovod's own tests under poprun and under mpirun."""
EVERYWHERE = {
    "HOROVOD_IDLE_CYCLE_TIME": "5",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # The TCP transport's own flags without "put": send, inplace, need-ack, need-csum, hetero-rdma.
    "OMPI_MCA_btl_tcp_flags": "313",
}
"""Settings of Horovod and Open MPI for all jobs, where the user has set none. In every cycle all
instances exchange a message, also without work: cycles of 0.1 ms took a third of a core, and those
of 1 ms beside a network 5 to 10 ms of a step of 450 ms. So cycles without work become longer (the
patch ``idle-cycles`` of `popdist.horovod_build.patches`; another Horovod ignores that variable). A
Horovod thread polls inside MPI beside each program. Without MPI's setting the thread occupies the
processor that computes (with two instances on two cores, computing took twice as long). No cost for
exchanges was measured. Over TCP, Open MPI lets the receiver of a long message ask for each part of
it; where programs compute on all cores, the receiver's thread is late every time. Without that, the
sender goes on by itself: of an exchange over 1 Gbit/s, 34 to 55 % instead of 13 to 32 % were hidden
behind a step, and the median of an exchange alone was 140 to 150 ms instead of 205."""
_HOROVODS_PATIENCE = 60.0
_GUARD = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "guard"))


def build_command(
    job: Job,
    instances: Sequence[Instance],
    mpirun: Mpirun,
    environ: Mapping[str, str],
    *,
    run: Run,
    meeting: Mapping[str, str],
    as_root: bool,
    has_tcp: bool = True,
) -> Command:
    """Builds the command: one application context per instance.

    ``meeting`` has the variables of `popdist.poprun.plan.rendezvous`. With ``as_root``, mpirun is
    allowed to run as root. On one machine, ``has_tcp`` is whether MPI may use TCP.
    """
    here = {**EVERYWHERE, **network_variables(job, mpirun.dialect, environ)}
    if job.is_local:
        here |= {mpirun.dialect.session_variable: run.session, **ONE_HOST}
        here |= {} if has_tcp or _chooses_transports(job) else WITHOUT_TCP
    else:
        here[mpirun.dialect.own_session_variable] = run.session
    targets = target_options(job, environ)
    if targets is not None:
        here[TARGET_OPTIONS] = targets
    environment = {**here, **environ, **meeting, **job.variables.environment}
    shared = [name for name in (*FORWARDED, TARGET_OPTIONS) if name in environment]
    shared += meeting
    neighbours: dict[str, int] = {}
    for one in instances:
        neighbours[one.host.name] = neighbours.get(one.host.name, 0) + 1
    nodes = {name: node for node, name in enumerate(neighbours)}
    start: tuple[str, ...] = (sys.executable, "-I", "-S", f"{_GUARD}/start.py")
    if run.fronts is not None:
        start = ("/bin/sh", f"{_GUARD}/front.sh", sys.executable)
        environment[FRONT] = run.fronts
        shared.append(FRONT)
    contexts = []
    for one in instances:
        options = ["-np", "1"]
        if not job.is_local:
            options += ["--host", one.host.name]
        contract = write({**one.fields, "restart_count": run.restart, "run_folder": run.logs})
        for name, value in {
            **contract,
            **one.variables,
            **_horovod(job, one, run, environment),
        }.items():
            options += ["-x", f"{name}={value}"]
        for name in dict.fromkeys([*shared, *job.variables.names(one.index)]):
            options += ["-x", name]
        options += [*job.local_args, *job.instance_args.get(one.index, ())]
        settings = guard_settings(job, one, run, neighbours[one.host.name])
        settings.append(f"node={nodes[one.host.name]}")
        if kept := STANDARD & job.variables.sets(one.index):
            settings.append(f"keep={','.join(sorted(kept))}")
        contexts.append(Context(tuple(options), start, tuple(settings)))
    has_tcp = not WITHOUT_TCP.items() <= environment.items()
    head = _head(job, mpirun, as_root=as_root)
    return Command(head, tuple(contexts), job.program, environment, has_tcp)


def _chooses_transports(job: Job) -> bool:
    """Whether the user names MPI's transports, in options for mpirun or a variable for programs."""
    words = {*job.global_args, *job.local_args}.union(*job.instance_args.values())
    names = set(job.variables.common).union(*job.variables.single.values())
    return "btl" in words or not names.isdisjoint(WITHOUT_TCP)


def _head(job: Job, mpirun: Mpirun, *, as_root: bool) -> tuple[str, ...]:
    """The path of mpirun and its global options."""
    head = [mpirun.path, *job.global_args]
    if not any(word.lstrip("-").startswith("bind-to") for word in job.global_args):
        head += ["--bind-to", "none"]  # each guard binds by its own host's nodes
    head += mpirun.dialect.oversubscribe
    if as_root:
        head.append("--allow-run-as-root")
    return tuple(head)


def _horovod(job: Job, one: Instance, run: Run, environ: Mapping[str, str]) -> dict[str, str]:
    """Horovod's variables for ``--stall-...`` and ``--timeline``."""
    found = {}
    wait = job.limits.stall_timeout or job.limits.stall_warning
    if job.limits.stall_timeout or wait not in (0.0, _HOROVODS_PATIENCE):
        found["HOROVOD_STALL_CHECK_TIME_SECONDS"] = str(max(1, round(wait)))
    if run.timeline:
        found["HOROVOD_TIMELINE"] = timeline_file(run.timeline, one.index)
        if "HOROVOD_CACHE_CAPACITY" not in environ:
            # With its response cache, Horovod records the submissions of a tensor only once.
            found["HOROVOD_CACHE_CAPACITY"] = "0"
    return found


def target_options(job: Job, environ: Mapping[str, str]) -> str | None:
    """The value of `TARGET_OPTIONS`; None where the user set it, or set no option about links."""
    if TARGET_OPTIONS in environ or not _SAYS_SOMETHING & job.given:
        return None
    devices = job.num_replicas * job.ipus_per_replica
    told = {
        "ipuLinkDomainSize": devices // job.num_ilds,
        "ipuLinkTopology": job.partition.ipu_link_routing_type,
        "gatewayMode": "true" if job.num_ilds > 1 else "false",
    }
    if job.num_replicas % job.num_instances == 0:
        told["instanceSize"] = devices // job.num_instances
    return "{%s}" % ", ".join(f'"{k}": "{v}"' for k, v in told.items() if v is not None)  # noqa: UP031


def network_variables(job: Job, dialect: Dialect, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for mpirun's networks, ssh and Slurm.

    Variables of ``environ`` and mpirun's command line options win over these variables.

    Raises:
        UsageError: ``--host-subnet`` is not a list of networks.
    """
    if job.is_local:
        # A job on one machine needs no help from Slurm, and must not spread over other hosts.
        names = dialect.scheduler_variables if job.allocation is not None else ()
        return {**dict.fromkeys(names, "^slurm"), **dialect.here_alone}
    from popdist.poprun.machines.ssh import QUIET, STRICT, is_ssh_set

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
                "--host-subnet is not a list of networks",
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
