"""What is worth saying about a job before it starts, and whether this user may start it."""

from __future__ import annotations

from popdist.errors import LaunchError
from popdist.poprun.command.options import OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.plan.job import Job


def check_user(job: Job, user: int) -> None:
    """Checks that a user may run the job.

    Args:
        job: The job.
        user: The user's number; 0 for root.

    Raises:
        LaunchError: It is root, who was told not to.
    """
    if user == 0 and not job.allow_run_as_root:
        raise LaunchError(
            "PD107",
            "this is root, and the job may not run as root",
            value="--allow-run-as-root=no",
            accepted="another user, or --allow-run-as-root=yes",
            hint="run poprun as a user of your own",
        )


def remarks(job: Job, user: int) -> list[str]:
    """What ``-v`` says about a job.

    Args:
        job: The job.
        user: The user's number.

    Returns:
        One line each.
    """
    found = ["running as root, and so are the instances"] if user == 0 else []
    found += [
        f"--{option.name} is noted, and has no effect on hosts, which have no IPUs and no V-IPU"
        for option in OPTIONS
        if option.ipu_only and option.name in job.given
    ]
    return found
