"""Gives other hosts what they lack, where the user allows it: the user's key, this environment."""

from __future__ import annotations

import subprocess
import sys

from popdist.errors import LaunchError
from popdist.poprun.machines.ssh import QUIET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.poprun.log import Log


def copy_key(hosts: Sequence[str], ssh: Sequence[str], log: Log) -> None:
    """Runs ssh-copy-id, which may ask for passwords: it is there for people.

    Args:
        hosts: The hosts that deny access.
        ssh: The words that start a command on a host, up to its name.
        log: For the launcher's messages.

    Raises:
        LaunchError: There is no ssh-copy-id.
    """
    quiet = len(QUIET)
    options = ssh[1 + quiet :] if tuple(ssh[1 : 1 + quiet]) == QUIET else ssh[1:]
    for host in hosts:
        log.info(f"Running ssh-copy-id for {host}")
        try:
            subprocess.run(["ssh-copy-id", *options, host], check=False)  # noqa: S607 - from PATH, as ssh
        except OSError as error:
            raise LaunchError(
                "PD120",
                f"ssh-copy-id cannot be run: {error.strerror}",
                hint="install it (openssh-client), or add your key to ~/.ssh/authorized_keys there",
            ) from None


def copy_environment(hosts: Sequence[str], ssh: Sequence[str], log: Log) -> None:
    """Copies this Python's virtual environment to the same path on other hosts.

    Args:
        hosts: The hosts that have none, or another one.
        ssh: The words that start a command on a host, up to its name.
        log: For the launcher's messages.

    Raises:
        LaunchError: This Python is in no virtual environment, or the copy failed.
    """
    import shlex

    if sys.prefix == sys.base_prefix:
        raise LaunchError(
            "PD120",
            "this Python is in no virtual environment that could be copied to other hosts",
            value=sys.executable,
            hint="python3 -m venv .venv, install popdist there, and start .venv/bin/poprun",
        )
    there = shlex.quote(sys.prefix)
    for host in hosts:
        log.info(f"Copying {sys.prefix} to {host}")
        with subprocess.Popen(
            ["tar", "-C", sys.prefix, "-cf", "-", "."],  # noqa: S607 - the system's own
            stdout=subprocess.PIPE,
        ) as packing:
            done = subprocess.run(
                [*ssh, host, f"mkdir -p {there} && tar -C {there} -xf -"],
                stdin=packing.stdout,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                check=False,
            )
        if done.returncode != 0 or packing.returncode != 0:
            raise LaunchError(
                "PD120",
                f"the virtual environment could not be copied to {host}",
                value=done.stderr.strip()[-300:] or f"tar ended with {packing.returncode}",
                accepted=f"a host that lets this user write {sys.prefix}",
            )
