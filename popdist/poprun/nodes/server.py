"""Runs commands on this node for the first one, as an ssh server would."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading

from popdist.poprun.nodes.wire import (
    END,
    ERROR,
    EXIT,
    INPUT,
    OUTPUT,
    RUN,
    StrangerError,
    Wire,
)
from popdist.poprun.protocol.processes import kill_group

_PROOF_S = 5.0
_BLOCK = 1 << 16
_LAST_WORDS_S = 1.0


class Server:
    """Waits for commands at a port that the system chooses.

    Args:
        address: The address of this node in the network of the first one.

    Attributes:
        port: The port.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.port = int(self._listener.getsockname()[1])

    def serve(self, control: Wire, key: bytes) -> None:
        """Serves until there is something to read from the first node.

        Args:
            control: The connection to the first node.
            key: What those know who may give commands.
        """
        while True:
            ready, _, _ = select.select([self._listener.fileno(), control.fileno()], [], [])
            if control.fileno() in ready:
                return
            connection, _ = self._listener.accept()
            threading.Thread(target=_answer, args=(connection, key), daemon=True).start()

    def close(self) -> None:
        """Takes no more commands."""
        self._listener.close()


def _answer(connection: socket.socket, key: bytes) -> None:
    try:
        connection.settimeout(_PROOF_S)
        wire = Wire(connection, key, listens=True)
        kind, command = wire.receive()
        if kind == RUN:
            _run(wire, os.fsdecode(command))
        wire.close()
    except (OSError, EOFError, StrangerError):
        connection.close()


def _run(wire: Wire, command: str) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018 - pipes
        outputs = {process.stdout.fileno(): OUTPUT, process.stderr.fileno(): ERROR}
        threads = [
            threading.Thread(target=_pass_output, args=(wire, fd, kind), daemon=True)
            for fd, kind in outputs.items()
        ]
        for thread in threads:
            thread.start()
        args = (wire, process, process.stdin.fileno())
        threading.Thread(target=_pass_input, args=args, daemon=True).start()
        code = process.wait()
        for thread in threads:  # what it has left running may keep its streams
            thread.join(_LAST_WORDS_S)
        wire.send(EXIT, str(code if code >= 0 else 128 - code).encode())


def _pass_output(wire: Wire, descriptor: int, kind: bytes) -> None:
    try:
        while data := os.read(descriptor, _BLOCK):
            wire.send(kind, data)
    except OSError:  # the other side has gone, or the command has ended
        pass


def _pass_input(wire: Wire, process: subprocess.Popen[bytes], descriptor: int) -> None:
    """Passes input; ends the command with the connection, as ssh does."""
    try:
        while True:
            kind, content = wire.receive()
            if kind == END and process.stdin is not None:
                process.stdin.close()
            while kind == INPUT and content:
                content = content[os.write(descriptor, content) :]
    except (OSError, EOFError, StrangerError, ValueError):
        if process.poll() is None:
            kill_group(process.pid)
