"""Why a host cannot take part in a job, and the remedy for each cause. Pure."""

from __future__ import annotations

from popdist.errors import LaunchError
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLOCK_SECONDS = 5.0
"""The largest allowed clock difference; shared builds, caches and logs compare times."""

_SSH_FAILED = 255
_NOT_FOUND = (126, 127)
_LISTED = 20


class Reason(Record):
    """Why a host cannot take part.

    Attributes:
        kind: A short name of the cause.
        text: The cause in words.
        remedy: What to do, with ``{host}`` where the host's name belongs.
    """

    kind: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return self.text


_BY_TEXT: tuple[tuple[tuple[str, ...], Reason], ...] = (
    (
        ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
        Reason(
            kind="unknown key",
            text="its key is not the known one",
            remedy="ssh {host} once by hand and accept its key, which then is in "
            "~/.ssh/known_hosts; a key that has changed is removed with: ssh-keygen -R {host}",
        ),
    ),
    (
        ("Permission denied", "Too many authentication failures"),
        Reason(
            kind="denied",
            text="it denies access",
            remedy="ssh-copy-id {host}, which adds your key to ~/.ssh/authorized_keys there "
            "(--distribute-ssh-key=yes does so); passwords are not supported",
        ),
    ),
    (
        ("Could not resolve hostname",),
        Reason(
            kind="unknown name",
            text="its name is not known",
            remedy="check the name, or use the address",
        ),
    ),
    (
        ("Connection refused",),
        Reason(
            kind="refused",
            text="it has no ssh server",
            remedy="start sshd on {host}, or give its port: "
            "--mpi-global-args='--mca plm_rsh_args \"-p PORT\"'",
        ),
    ),
    (
        ("No route to host", "timed out", "Network is unreachable", "Connection closed by",
         "Connection reset"),
        Reason(
            kind="unreachable",
            text="it cannot be reached",
            remedy="see whether {host} is up and in this network: ping {host}",
        ),
    ),
)  # fmt: skip
"""Causes by the texts that ssh prints."""


def explain_ssh(code: int | None, errors: str, python: str) -> Reason:
    """The reason why a host gave no answer; ``code`` is None where ssh did not end in time."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit code {code}"
    for marks, reason in _BY_TEXT if code in (_SSH_FAILED, None) else ():
        seen = [line for line in lines if any(mark in line for mark in marks)]
        if seen:
            return Reason(reason.kind, f"{reason.text} ({seen[-1]})", reason.remedy)
    if code is None:
        return Reason("timeout", "it did not answer in time", "see whether 'ssh {host} true' ends")
    if code in _NOT_FOUND or (code != _SSH_FAILED and "No such file or directory" in errors):
        return Reason(
            "no python",
            f"there is no Python at {python} ({last})",
            "install the same environment at the same path on {host}, or share it, or "
            "--synchronise-python-venv=yes",
        )
    if "No module named" in errors:
        return Reason(
            "no popdist",
            f"its Python at {python} has no popdist, or an older one ({last})",
            "install the same popdist at the same path on {host}",
        )
    if code == _SSH_FAILED:
        return Reason("ssh", f"ssh failed ({last})", "see what 'ssh -v {host} true' says")
    return Reason("failed", f"looking at it failed ({last})", "see what 'ssh {host} true' says")


def lacks_client(name: str, why: str | None) -> Reason:
    """The reason why no host can be reached from here."""
    return Reason(
        "no client",
        f"{name} cannot be started on this machine ({why})",
        f"install an ssh client here (apt install openssh-client), or run on this machine alone, "
        f"which needs no {name}",
    )


def explain_answer(
    answer: Mapping[str, object], version: str, mpirun: str, skew: float
) -> Reason | None:
    """The reason why a host that answered cannot take part, or None; ``skew`` is in seconds."""
    if answer["version"] != version:
        return Reason(
            "version",
            f"it has popdist {answer['version']}, this host {version}",
            f"install popdist {version} on {{host}}",
        )
    if not answer["mpirun"]:
        return Reason(
            "no mpirun",
            f"there is no mpirun at {mpirun}",
            "install the same Open MPI at the same path on {host}",
        )
    if abs(skew) > CLOCK_SECONDS:
        return Reason(
            "clock",
            f"its clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}",
            "set the clock of {host}, or let NTP do it",
        )
    return None


def unfit_hosts(reasons: Mapping[str, Reason], total: int) -> LaunchError:
    """One error for all hosts that cannot take part in a job of ``total`` hosts."""
    lines = [f"{len(reasons)} of {total} hosts cannot take part in the job"]
    lines += [f"  {host}: {reason}" for host, reason in list(reasons.items())[:_LISTED]]
    if len(reasons) > _LISTED:
        lines.append(f"  ... and {len(reasons) - _LISTED} more")
    return LaunchError(
        "PD120",
        "\n".join(lines),
        accepted="hosts that ssh reaches without a question, with the same Python, popdist and "
        f"Open MPI at the same paths, and clocks within {CLOCK_SECONDS:.0f} s",
        hint="\n            ".join([*_remedies(reasons), "--preflight=no skips this look"]),
    )


def _remedies(reasons: Mapping[str, Reason]) -> Sequence[str]:
    """One remedy per cause, with the first of its hosts."""
    first: dict[str, str] = {}
    for host, reason in reasons.items():
        first.setdefault(reason.kind, reason.remedy.replace("{host}", host))
    return list(first.values())
