"""The same job on fewer hosts: all replicas, divided over the remaining instances. Pure."""

from __future__ import annotations

from popdist.errors import UsageError
from popdist.poprun.machines.hosts import Host
from popdist.poprun.plan.job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from popdist.poprun.plan.placement import Instance


def check_min_instances(job: Job) -> None:
    """Checks ``--min-instances`` against the job's other options.

    Raises:
        UsageError: ``--min-instances`` contradicts another option.
    """
    least = job.limits.min_instances
    if least is None:
        return
    wrong = None
    if least > job.num_instances:
        wrong = "--min-instances is more than the job has", f"--min-instances {job.num_instances}"
    elif not job.limits.max_restarts:
        wrong = "--min-instances is about restarts, and there are none", "--max-restarts 3"
    elif job.num_ilds > 1:
        wrong = "link domains cannot lose instances, as they are alike", "leave --num-ilds out"
    if wrong:
        raise UsageError(
            "PD101",
            wrong[0],
            value=f"--min-instances {least} --num-instances {job.num_instances} --max-restarts "
            f"{job.limits.max_restarts} --num-ilds {job.num_ilds}",
            hint=wrong[1],
        )


def without_hosts(job: Job, placed: Sequence[Instance], lost: Collection[str]) -> Job | None:
    """The job without the hosts in ``lost``; None where fewer instances than allowed remain.

    Each remaining host keeps its number of instances. All replicas are divided over the remaining
    instances, so the global batch does not change.
    """
    counts: dict[str, int] = {}
    granted: dict[str, int | None] = {}
    for one in placed:
        if one.host.name not in lost:
            counts[one.host.name] = counts.get(one.host.name, 0) + 1
            granted[one.host.name] = one.host.cpus
    number = sum(counts.values())
    if number < max(1, job.limits.min_instances or job.num_instances):
        return None
    if number == job.num_instances:
        return job
    hosts = tuple(Host(name, count, granted[name]) for name, count in counts.items())
    shown = job.only_output_from
    return Job(
        **{
            **vars(job),
            "hosts": hosts,
            "num_instances": number,
            "only_output_from": None if shown is None else min(shown, number - 1),
        }
    )
