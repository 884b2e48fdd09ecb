"""A replacement for ssh between the nodes of a job: ``shell.py HOST COMMAND``.

It has the poprun that waits on that node run a command, and passes its streams and its exit code.
"""

import os
import sys

_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.path.insert(0, os.path.normpath(_ROOT))

import json  # noqa: E402 - found by the path above
import socket  # noqa: E402 - as above
import threading  # noqa: E402 - as above

from popdist.poprun.nodes.wire import (  # noqa: E402 - as above
    END,
    EXIT,
    INPUT,
    OUTPUT,
    RUN,
    StrangerError,
    Wire,
)

NODES = "POPRUN_NODES"
"""The variable with the file that says where nodes wait, and with which key."""
_PATIENCE_S = 10.0
_FAILED = 255  # as ssh's
_BLOCK = 1 << 16


def main(arguments: list[str]) -> int:
    """Runs a command on a node.

    Args:
        arguments: The node's address, and the words of the command.

    Returns:
        The command's exit code; 255 where the node cannot be reached.
    """
    host, *words = arguments
    try:
        with open(os.environ[NODES], encoding="ascii") as file:
            nodes = json.load(file)
        place = (host, int(nodes["ports"][host]))
        connection = socket.create_connection(place, _PATIENCE_S)
        wire = Wire(connection, bytes.fromhex(nodes["key"]), listens=False)
        wire.send(RUN, " ".join(words).encode())
        threading.Thread(target=_forward, args=(wire,), daemon=True).start()
        return _relay(wire)
    except (OSError, KeyError, ValueError, EOFError, StrangerError) as error:
        text = str(error) or type(error).__name__
        sys.stderr.write(f"poprun: the node {host} cannot be reached: {text}\n")
        return _FAILED


def _forward(wire: Wire) -> None:
    """Passes what this process reads."""
    try:
        while data := os.read(0, _BLOCK):
            wire.send(INPUT, data)
        wire.send(END)
    except OSError:  # the command has ended
        pass


def _relay(wire: Wire) -> int:
    """Writes what the command writes, until it ends."""
    while True:
        kind, content = wire.receive()
        if kind == EXIT:
            return int(content)
        descriptor = 1 if kind == OUTPUT else 2
        while content:
            content = content[os.write(descriptor, content) :]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
