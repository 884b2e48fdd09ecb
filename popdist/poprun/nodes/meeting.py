"""How nodes meet: the same poprun command on each, as with torchrun, and no ssh.

Node 0 waits for the others at ``--master-addr``. Then it is the only one that starts anything: its
mpirun has `shell` in the place of ssh, which has the other nodes start Open MPI's daemons. A node
waits until node 0 has ended, and ends with its exit code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from time import monotonic, sleep

from popdist._version import __version__
from popdist.errors import LaunchError, UsageError
from popdist.poprun.log import say
from popdist.poprun.nodes.server import Server
from popdist.poprun.nodes.shell import NODES
from popdist.poprun.nodes.wire import (
    EXIT,
    HELLO,
    KEY,
    REFUSED,
    START,
    StrangerError,
    Wire,
    key_file,
    read_key,
)
from popdist.poprun.options.parser import CommandLine
from popdist.poprun.protocol.processes import adopt_orphans, kill_descendants, kill_marked
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

_MARK = "POPRUN_NODE_OF"
_SHELL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shell.py")
_AGENTS = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
_PATIENCE_S = 600.0
_PROOF_S = 5.0
_AGAIN_S = 0.5
_SWEEP_S = 2.0


class _Place(Record):
    """The place of this node in a job over several.

    Attributes:
        rank: Its rank.
        nodes: How many there are.
        address: Where node 0 waits.
        port: At which port.
        words: A digest of what has to be the same on all nodes.
    """

    rank: int
    nodes: int
    address: str
    port: int
    words: str


def take_part(line: CommandLine, start: Callable[[CommandLine], int]) -> int:
    """Takes part in a job over several nodes.

    Args:
        line: The command line, which is the same on all nodes but for ``--node-rank``.
        start: Starts a job, with its hosts, and returns its exit code.

    Returns:
        The exit code of the job.

    Raises:
        UsageError: The options contradict each other.
        LaunchError: The nodes do not meet.
    """
    place = _place(line)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[name]  # the nodes are these, and mpirun is to reach them in this way
    if place.rank:
        return _Worker(place).work()
    meeting = _Meeting(place)
    code = 1
    try:
        hosts = meeting.gather()
        code = start(_over(line, hosts))
    finally:
        meeting.end(code)
    return code


def _place(line: CommandLine) -> _Place:
    values: Mapping[str, Any] = line.values
    nodes, rank = values["nnodes"], values["node-rank"]
    if rank is None or values["master-addr"] is None:
        missing = "node-rank" if rank is None else "master-addr"
        raise UsageError(
            "PD101",
            f"--nnodes needs --{missing}",
            value=f"--nnodes {nodes}",
            accepted="on each node: --nnodes N --node-rank K --master-addr HOST, with K from 0 to "
            "N - 1, and a name or address of node 0",
        )
    if rank >= nodes:
        raise UsageError("PD101", "there is no such node", value=rank, accepted=f"0 to {nodes - 1}")
    for name in ("host", "hostfile", "dry-run", "print-topology"):
        if values[name]:
            raise UsageError(
                "PD101",
                f"--nnodes and --{name} exclude each other",
                hint="nodes are known when they have connected; --host needs ssh",
            )
    alike = [line.program, values["num-instances"], nodes, __version__]
    words = hashlib.sha256(json.dumps(alike, default=str).encode()).hexdigest()
    return _Place(rank, nodes, values["master-addr"], values["master-port"], words)


def _over(line: CommandLine, hosts: list[str]) -> CommandLine:
    """The same command line with the hosts that have met."""
    values = {**line.values, "host": ",".join(hosts)}
    return CommandLine(values, line.given | {"host"}, line.program, line.origins, line.notes)


class _Meeting:
    """Node 0, which waits for the others and starts the job."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        key = read_key(os.environ, makes=True)
        assert key is not None  # noqa: S101 - it was made
        self._key = key
        os.environ.pop(KEY, None)  # no program needs it
        self._wires: dict[int, Wire] = {}
        self._ports: dict[str, int] = {}
        self._hosts: dict[int, str] = {}
        self._command_key = os.urandom(32)
        self._folder = ""

    def gather(self) -> list[str]:
        """Waits for all nodes; returns their addresses in the order of their ranks."""
        here = self._place
        try:
            listener = socket.create_server((here.address, here.port))
        except OSError as error:
            raise LaunchError(
                "PD122",
                f"node 0 cannot wait for the others: {error.strerror}",
                value=f"{here.address}, port {here.port}",
                accepted="an address of this machine, and a free port (--master-port)",
            ) from None
        say(f"poprun: node 0 waits for {here.nodes - 1} more at {here.address}, port {here.port}")
        until = monotonic() + _PATIENCE_S
        with listener:
            while len(self._wires) < here.nodes - 1:
                listener.settimeout(max(0.01, until - monotonic()))
                try:
                    connection, peer = listener.accept()
                except TimeoutError:
                    self._give_up()
                self._receive(connection, str(peer[0]))
        self._write()
        for wire in self._wires.values():
            wire.send(START, self._command_key)
        return [self._hosts[rank] for rank in range(here.nodes)]

    def end(self, code: int) -> None:
        """Sends the exit code to the other nodes."""
        for wire in self._wires.values():
            with suppress(OSError):  # it has gone
                wire.send(EXIT, str(code).encode())
                wire.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(self) -> NoReturn:
        missing = [str(rank) for rank in range(1, self._place.nodes) if rank not in self._wires]
        raise LaunchError(
            "PD122",
            f"nodes have not connected within {_PATIENCE_S:g} s",
            value=f"missing: {', '.join(missing)}",
            hint="start the same command there with --node-rank; a firewall may be between",
        )

    def _receive(self, connection: socket.socket, peer: str) -> None:
        connection.settimeout(_PROOF_S)
        try:
            wire = Wire(connection, self._key, listens=True)
            _, content = wire.receive()
            told = json.loads(content)
            rank, port, words = int(told["rank"]), int(told["port"]), str(told["words"])
            mine = str(connection.getsockname()[0])
        except StrangerError:
            say(f"poprun: {peer} has connected with another key")
            connection.close()
            return
        except (OSError, EOFError, ValueError, KeyError):
            connection.close()
            return
        problem = self._problem(rank, words, peer, mine)
        if problem:
            say(f"poprun: node {rank} at {peer} is refused: {problem}")
            wire.send(REFUSED, problem.encode())
            wire.close()
            return
        self._hosts[0] = mine
        self._wires[rank], self._hosts[rank], self._ports[peer] = wire, peer, port

    def _problem(self, rank: int, words: str, peer: str, mine: str) -> str:
        if words != self._place.words:
            return (
                "it has another command line than node 0, or another version of popdist; only "
                "--node-rank may differ"
            )
        if not 0 < rank < self._place.nodes:
            return f"its rank is none of 1 to {self._place.nodes - 1}"
        if rank in self._wires:
            return f"another node has rank {rank}, at {self._hosts[rank]}"
        if peer == mine or peer in self._ports:
            return "another node is on the same machine, which is one node with more instances"
        return ""

    def _write(self) -> None:
        """Writes where `shell` finds the nodes, and has mpirun use it."""
        self._folder = tempfile.mkdtemp(prefix="poprun.nodes.")
        path = os.path.join(self._folder, "nodes.json")
        with open(path, "x", encoding="ascii") as file:
            json.dump({"key": self._command_key.hex(), "ports": self._ports}, file)
        os.environ[NODES] = path
        for name in _AGENTS:
            os.environ[name] = f"{sys.executable} -I -S {_SHELL}"


class _Worker:
    """A node with a rank from 1 on, which runs what node 0 commands."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._where = f"{place.address}, port {place.port}"
        self._mark = os.urandom(8).hex()

    def work(self) -> int:
        """Connects to node 0, and serves it to the end of the job."""
        control, server = self._connect()
        os.environ.pop(KEY, None)
        os.environ[_MARK] = self._mark
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        try:
            kind, content = control.receive()
            if kind == REFUSED:
                raise LaunchError(
                    "PD122", f"node 0 refuses this node: {content.decode(errors='replace')}"
                )
            server.serve(control, content)
            _, content = control.receive()
            return int(content)
        except (EOFError, OSError, StrangerError):
            raise LaunchError(
                "PD122",
                "node 0 has ended without a word",
                value=self._where,
                hint="see what its poprun said",
            ) from None
        finally:
            server.close()
            kill_marked(f"{_MARK}={self._mark}", _SWEEP_S)
            kill_descendants(_SWEEP_S)

    def _connect(self) -> tuple[Wire, Server]:
        until, told, why = monotonic() + _PATIENCE_S, False, "no answer"
        while monotonic() < until:
            key = read_key(os.environ, makes=False)
            if key is None:
                why = f"there is no key in {key_file(os.environ)}"
            else:
                try:
                    return self._introduce(key)
                except StrangerError:
                    raise LaunchError(
                        "PD123",
                        "node 0 has another key",
                        value=self._where,
                        accepted=f"the same {KEY} on all nodes, or the same {key_file(os.environ)}",
                    ) from None
                except (OSError, EOFError) as error:
                    why = str(error) or "it has closed the connection"
            if not told:
                told = True
                say(f"poprun: node {self._place.rank} waits for node 0 at {self._where} ({why})")
            sleep(_AGAIN_S)
        raise LaunchError(
            "PD122",
            f"node 0 was not found within {_PATIENCE_S:g} s",
            value=f"{self._where}: {why}",
            hint=f"start node 0, open the port, and give all nodes the same {KEY}",
        )

    def _introduce(self, key: bytes) -> tuple[Wire, Server]:
        place = self._place.address, self._place.port
        connection = socket.create_connection(place, _PROOF_S)
        try:
            wire = Wire(connection, key, listens=False)
            server = Server(str(connection.getsockname()[0]))
        except BaseException:
            connection.close()
            raise
        told = {"rank": self._place.rank, "port": server.port, "words": self._place.words}
        wire.send(HELLO, json.dumps(told).encode())
        return wire, server
