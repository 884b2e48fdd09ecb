"""A real Slurm on one machine: munged, slurmctld, and a slurmd on each of several hosts.

The hosts are those of `tests.hosts.network`. Keys, sockets, ports, state and logs are the test's
own, so a Slurm that the machine may have is not touched. Needs root, slurm-wlm and munge.
"""

import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.hosts.network import PROGRAMS as NETWORK_PROGRAMS
from tests.hosts.network import Hosts, run

PROGRAMS = (*NETWORK_PROGRAMS, "munged", "slurmctld", "slurmd", "salloc", "sbatch", "srun")
_PATIENCE_S = 30
_TASKS = 4


class Cluster:
    """Slurm over a number of hosts, as a context.

    Args:
        folder: For everything that belongs to it; other users must be able to reach it.
        number: How many hosts.

    Attributes:
        names: The hosts' names.
        environment: What Slurm's commands need.
    """

    def __init__(self, folder, number=2):
        self.folder = Path(folder)
        self._hosts = Hosts(folder, number, name="popslurm", subnet=32)
        self.names = self._hosts.names
        self.environment = {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin",
        }
        self._stack = ExitStack()

    def __enter__(self):
        with ExitStack() as stack:
            stack.enter_context(self._hosts)
            stack.callback(self._stop)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def allocate(self, options, command, *, timeout=60):
        """Runs a command in an allocation; its exit code, and its two outputs."""
        words = ["salloc", "--quiet", *options, *map(str, command)]
        return self._run(words, timeout)

    def submit(self, options, script, *, timeout=60, cancel_when=None):
        """Runs a batch script to its end; Slurm's word for how it ended, and its outputs together.

        A text to cancel it at is waited for in the outputs, if given.
        """
        file, log = self.folder / "script", self.folder / "script.log"
        file.write_text(f"#!/bin/sh\n{script}\n")
        log.unlink(missing_ok=True)
        _, number, errors = self._run(["sbatch", "--parsable", "-o", log, *options, file], 10)
        assert number, errors
        state, until = "PENDING", time.monotonic() + timeout
        while state in {"PENDING", "RUNNING", "COMPLETING"}:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
            if cancel_when and log.exists() and cancel_when in log.read_text():
                self._run(["scancel", number.strip()], 10)
                cancel_when = None
            _, shown, _ = self._run(["scontrol", "show", "job", number.strip()], 10)
            state = shown.partition("JobState=")[2].split()[0]
        return state, log.read_text()

    def _run(self, words, timeout):
        process = subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
            raise AssertionError(f"no end within {timeout} s: {words}\n{out}\n{errors}") from None
        return process.returncode, out, errors

    def _start(self):
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o600)
        run("/usr/sbin/munged", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log",
            f"--seed-file={munge}/seed")  # fmt: skip
        (self.folder / "slurm.conf").write_text(self._settings())
        run("env", *(f"{k}={v}" for k, v in self.environment.items()), "/usr/sbin/slurmctld")
        for index, name in enumerate(self.names):
            environment = f"SLURM_CONF={self.folder}/slurm.conf"
            self._hosts.execute(index, f"{environment} exec /usr/sbin/slurmd -N {name}")
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            _, states, _ = self._run(["sinfo", "--noheader", "-N", "-o", "%T"], 10)
            if states.split() == ["idle"] * len(self.names):
                return
            time.sleep(0.1)
        log = (self.folder / "slurmctld.log").read_text()
        raise AssertionError(f"the hosts of Slurm did not become idle: {states}\n{log}")

    def _settings(self):
        folder = self.folder
        nodes = "".join(
            f"NodeName={name} NodeAddr={address} CPUs={_TASKS}\n"
            for name, address in zip(self.names, self._hosts.addresses, strict=True)
        )
        return (
            "ClusterName=popdist\n"
            f"SlurmctldHost={socket.gethostname()}({self._hosts.network}.1)\n"
            f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\n"
            "SlurmUser=root\nSlurmdUser=root\nSlurmctldPort=17817\nSlurmdPort=17818\n"
            f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\n"
            f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd-%n.pid\n"
            f"SlurmctldLogFile={folder}/slurmctld.log\nSlurmdLogFile={folder}/slurmd-%n.log\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\n"
            # The machine may have fewer processors than its hosts are said to have.
            "SlurmdParameters=config_overrides\n"
            f"{nodes}PartitionName=all Nodes=ALL Default=YES State=UP\n"
        )

    def _stop(self):
        for file in (self.folder / "slurmctld.pid", self.folder / "munge" / "pid"):
            with suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)
