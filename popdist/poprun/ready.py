"""Prepares machines for a job: checks other hosts, reserves devices, and releases the devices."""

from __future__ import annotations

from popdist.poprun.log import say
from popdist.poprun.plan.placement import HERE, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from popdist.poprun.log import Log
    from popdist.poprun.machines.cpus import Node
    from popdist.poprun.machines.find_mpirun import Mpirun
    from popdist.poprun.partitions.reservation import Reservation
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance


class Ready:
    """The machines of a job, from before its start until after its end.

    Args:
        job: The job.
        mpirun: Which mpirun runs it.
        environ: The launcher's environment.
        log: For the launcher's messages.

    Attributes:
        instances: The placed instances.

    Raises:
        LaunchError: A host or a partition cannot take the job.
    """

    def __init__(self, job: Job, mpirun: Mpirun, environ: Mapping[str, str], log: Log) -> None:
        self._job, self._mpirun, self._environ = job, mpirun, environ
        self._nodes: dict[str, tuple[Node, ...]] = {}
        self.instances: tuple[Instance, ...] = place(job)
        if job.allocation is not None:
            from popdist.poprun.machines.slurm import unused_tasks

            if note := unused_tasks(job.allocation, job.num_instances):
                say(f"poprun: {note}")
        self._reservation: Reservation | None = None
        if not job.dry_run:
            self._look(job, mpirun, environ, log)
        self._reserve(job, environ, log)

    def shown(self, job: Job) -> tuple[Instance, ...]:
        """The instances with their NUMA nodes, for the topology table."""
        from popdist.poprun.machines.cpus import usable_cpus, usable_nodes
        from popdist.poprun.plan.placement import label_numa

        local = {host.name for host in (*job.hosts, HERE) if host.is_local}
        here = usable_nodes(usable_cpus())
        return label_numa(
            job, self.instances, lambda name: here if name in local else self._nodes.get(name, ())
        )

    def hosts_lost(self) -> dict[str, str]:
        """The hosts that cannot take part in a restart, and why each cannot."""
        from popdist.poprun.machines.preflight import ask_hosts
        from popdist.poprun.machines.ssh import ssh_words

        others = dict.fromkeys(one.host.name for one in self.instances if not one.host.is_local)
        if not others or self._job.allocation is not None:
            return {}  # in an allocation Slurm itself knows what is lost, and ends the job
        ssh = ssh_words(self._job.global_args, self._environ)
        _, reasons = ask_hosts([*others], ssh, self._mpirun.path)
        return {name: str(reason) for name, reason in reasons.items()}

    def clear(self, hosts: Collection[str], mark: str) -> None:
        """Ends what was started with the variable ``mark`` on other hosts; Slurm does so itself."""
        if self._job.allocation is not None:
            return
        from popdist.poprun.machines.preflight import end_marked
        from popdist.poprun.machines.ssh import ssh_words

        for host in end_marked([*hosts], ssh_words(self._job.global_args, self._environ), mark):
            say(f"poprun: host {host} could not be asked to end what its programs have left there")

    def release(self) -> None:
        """Releases the reserved devices."""
        if self._reservation is not None:
            self._reservation.release()

    def _look(self, job: Job, mpirun: Mpirun, environ: Mapping[str, str], log: Log) -> None:
        # Inside an allocation Slurm itself starts mpirun's daemons.
        if job.is_local or job.allocation is not None or not job.reach.preflight:
            return
        from popdist.poprun.machines.preflight import reach_hosts
        from popdist.poprun.machines.ssh import ssh_words

        names = dict.fromkeys(one.host.name for one in self.instances if not one.host.is_local)
        ssh = ssh_words(job.global_args, environ)
        self._nodes = reach_hosts(list(names), ssh, mpirun.path, job.reach, log)

    def _reserve(self, job: Job, environ: Mapping[str, str], log: Log) -> None:
        if not any("partition" in name or name.startswith("vipu-") for name in job.given):
            return
        from popdist.poprun.partitions.fitting import read_request, stand_in
        from popdist.poprun.partitions.reservation import assign, preview, reserve

        if note := stand_in(job):
            say(f"poprun: {note}")
        request = read_request(job, environ)
        if request is None:
            return
        self._reservation = (preview if job.dry_run else reserve)(request, environ, log)
        names = ", ".join(device.name for device in self._reservation.devices)
        log.info(f"Reserved {names} of partition {self._reservation.partition}")
        self.instances = assign(self.instances, self._reservation, request.timeout)
