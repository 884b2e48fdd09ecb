"""Reaches the other hosts of a job over ssh, in parallel: checks them before the job starts.

Where the user allows it, a host gets the user's key or a copy of this Python environment. What a
job has left on a host whose guards were killed is ended in the same way.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

from popdist._version import __version__
from popdist.errors import LaunchError
from popdist.poprun.machines.cpus import Node, usable_cpus, usable_nodes
from popdist.poprun.machines.reasons import (
    Reason,
    explain_answer,
    explain_ssh,
    lacks_client,
    unfit_hosts,
)
from popdist.poprun.machines.ssh import CONNECT_SECONDS, QUIET
from popdist.poprun.protocol.guard_argv import format_list, parse_list
from popdist.poprun.protocol.processes import hear_of_parents_end, is_readable, watchable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Nodes = tuple[Node, ...]
    from popdist.poprun.log import Log
    from popdist.poprun.options.requests import Reach


# The part that runs on the other host.

MARK = "POPDIST-HOST "
"""Starts the line of the answer; other lines, such as a login shell's, are ignored."""


def main(mpirun: str) -> None:
    """Prints the answer, one line, on the host that is checked."""
    answer = {
        "version": __version__,
        "time": time.time(),
        "mpirun": os.access(mpirun, os.X_OK),
        "nodes": [
            [node.index, format_list(node.cpus), node.has_memory]
            for node in usable_nodes(usable_cpus())
        ],
    }
    sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")


_PATIENCE_S = 2.0 * CONNECT_SECONDS
_AT_ONCE = 64
_MOST_OUTPUT = 1 << 20
_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
# One line, and no character that any login shell would change inside quotes.
_PROBE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from popdist.poprun.machines.preflight import main; main(sys.argv[2])"
)


def ask_hosts(
    hosts: Sequence[str], ssh: Sequence[str], mpirun: str
) -> tuple[dict[str, Nodes], dict[str, Reason]]:
    """Checks ``hosts`` in parallel; returns nodes of usable hosts and reasons of the others."""
    nodes: dict[str, Nodes] = {}
    reasons: dict[str, Reason] = {}
    waiting, asked = list(reversed(hosts)), dict[int, _Question]()
    try:
        while waiting or asked:
            while waiting and len(asked) < _AT_ONCE:
                question = _Question(waiting.pop(), ssh, mpirun)
                asked[question.fd] = question
            _read(asked)
            for question in [one for one in asked.values() if one.is_over]:
                del asked[question.fd]
                found = question.close(mpirun)
                if isinstance(found, Reason):
                    reasons[question.host] = found
                else:
                    nodes[question.host] = found
    finally:
        for question in asked.values():
            question.close(mpirun)
    ordered = [host for host in hosts if host in reasons]
    return nodes, {
        host: reasons[host]
        for host in ordered
        if reasons[host].kind == "unknown name" or not is_here(host)
    }


def is_here(host: str) -> bool:
    """Whether a name or address belongs to this machine, which mpirun reaches without ssh."""
    import socket

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _read(asked: Mapping[int, _Question]) -> None:
    poll = select.poll()
    for fd in asked:
        poll.register(fd, select.POLLIN)
    patience = min(one.until for one in asked.values()) - time.monotonic()
    for fd, _ in poll.poll(max(0.0, patience) * 1000):
        asked[fd].read()


class _Question:
    """One host whose answer is pending."""

    def __init__(self, host: str, ssh: Sequence[str], mpirun: str) -> None:
        import shlex

        self.host = host
        self.until = time.monotonic() + _PATIENCE_S
        self._output = bytearray()
        self._ended = False
        self._asked_at = time.time()
        self._answered_at = 0.0
        self._failure: Reason | None = None
        # ssh passes the words to the host's login shell, which splits the words again.
        there = shlex.join([sys.executable, "-I", "-S", "-c", _PROBE, _ROOT, mpirun])
        self.fd, writer = os.pipe()
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*ssh, host, there],
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                preexec_fn=hear_of_parents_end,  # noqa: PLW1509 - the launcher has no threads
            )
        except OSError as error:
            self._process = None
            self._failure = lacks_client(ssh[0] if ssh else "ssh", error.strerror)
        finally:
            os.close(writer)

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete, or the time limit is over."""
        return self._ended or time.monotonic() >= self.until

    def read(self) -> None:
        """Reads the available part of the answer."""
        data = os.read(self.fd, 1 << 16)
        self._answered_at = time.time()
        self._ended = not data or len(self._output) > _MOST_OUTPUT
        self._output += data

    def close(self, mpirun: str) -> Nodes | Reason:
        """Ends ssh and returns the host's nodes, or the reason why the host cannot take part."""
        os.close(self.fd)
        if self._failure is not None:
            return self._failure
        code = self._end()
        text = self._output.decode(errors="replace")
        for line in text.splitlines():
            if line.startswith(MARK):
                return self._judge(line.removeprefix(MARK), mpirun)
        return explain_ssh(code, text, sys.executable)

    def _end(self) -> int | None:
        assert self._process is not None  # noqa: S101 - else there is a failure
        if self._ended:
            try:
                return self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        return None

    def _judge(self, text: str, mpirun: str) -> Nodes | Reason:
        try:
            answer = json.loads(text)
            # The host's clock was read at some moment between question and answer.
            behind = min(0.0, answer["time"] - self._asked_at)
            skew = behind or max(0.0, answer["time"] - self._answered_at)
            reason = explain_answer(answer, __version__, mpirun, skew)
            nodes = tuple(
                Node(index, frozenset(parse_list(cpus)), has_memory)
                for index, cpus, has_memory in answer["nodes"]
            )
        except (ValueError, KeyError, TypeError):
            return explain_ssh(0, f"No module named what this popdist expects: {text[:80]}", "")
        return nodes if reason is None else reason


# Repairs that the user may allow.


def copy_key(hosts: Sequence[str], ssh: Sequence[str], log: Log) -> None:
    """Runs ssh-copy-id, which may prompt for passwords, for hosts that deny access.

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


# The end of what a job has left.

_SWEEP = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from popdist.poprun.protocol.processes import kill_marked; kill_marked(sys.argv[2], 2.0)"
)


def end_marked(hosts: Sequence[str], ssh: Sequence[str], mark: str) -> list[str]:
    """Ends what was started with the variable ``mark`` on other hosts.

    Returns:
        The hosts that could not be reached.
    """
    import shlex

    there = shlex.join([sys.executable, "-I", "-S", "-c", _SWEEP, _ROOT, mark])
    started = {
        host: subprocess.Popen(
            [*ssh, host, there],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=hear_of_parents_end,  # noqa: PLW1509 - the launcher has no threads
        )
        for host in hosts
    }
    until = time.monotonic() + _PATIENCE_S
    for process in started.values():
        if not is_readable(watchable(process.pid), max(0.0, until - time.monotonic())):
            os.killpg(process.pid, signal.SIGKILL)
    return [host for host, process in started.items() if process.wait()]


# The check with the repairs.

_DENIED = {"denied"}
_UNLIKE = {"no python", "no popdist", "version", "no mpirun"}


def reach_hosts(
    hosts: Sequence[str], ssh: Sequence[str], mpirun: str, reach: Reach, log: Log
) -> dict[str, tuple[Node, ...]]:
    """Checks the hosts, repairs what ``reach`` allows, and returns each host's usable NUMA nodes.

    Raises:
        LaunchError: Some hosts cannot take part; the message lists each host with its reason.
    """
    log.info(f"Looking at {len(hosts)} other hosts over ssh")
    nodes, reasons = ask_hosts(hosts, ssh, mpirun)
    for wanted, kinds, repair in (
        (reach.distribute_ssh_key, _DENIED, copy_key),
        (reach.synchronise_python_venv, _UNLIKE, copy_environment),
    ):
        found = [host for host, reason in reasons.items() if reason.kind in kinds]
        if wanted and found:
            repair(found, ssh, log)
            more, still = ask_hosts(found, ssh, mpirun)
            nodes.update(more)
            reasons = {
                host: still.get(host, reason)
                for host, reason in reasons.items()
                if host not in found or host in still
            }
    if reasons:
        raise unfit_hosts(reasons, len(hosts))
    return nodes
