"""What programs are told of the links between devices. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.plan.job import Job

TARGET_OPTIONS = "POPLAR_TARGET_OPTIONS"
"""The published variable that tells programs about links; all of its values are texts."""

_SAYS_SOMETHING = {"num-ilds", "ipu-link-routing-type", "gw-link-routing-type", "sync-type"}


def target_options(job: Job, environ: Mapping[str, str]) -> str | None:
    """What programs are told about links.

    Args:
        job: The job.
        environ: The launcher's environment.

    Returns:
        The value of `TARGET_OPTIONS`; None where the user has set it, or has said nothing about
        links.
    """
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
