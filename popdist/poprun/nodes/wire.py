"""Frames between two nodes that know the same key; each frame has a code that proves its sender.

Both sides prove that they know the key, and send nothing of it. What is sent can be read on the
way, as what MPI sends can be, but not changed, repeated or left out.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import threading

from popdist.errors import LaunchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "POPRUN_NODE_KEY"
"""The variable with the key; without it the key is in a file of the user's."""

HELLO, START, REFUSED = b"h", b"s", b"n"
"""Kinds of frames as nodes meet."""

RUN, INPUT, END, OUTPUT, ERROR, EXIT = b"r", b"i", b"z", b"o", b"e", b"x"
"""Kinds of frames of a command: the command, its input with the end, its outputs, its exit code."""

_NONCE = 32
_CODE = 32
_HEAD = struct.Struct("!cI")
_LONGEST = 1 << 20
_LEAST_KEY = 16


class StrangerError(Exception):
    """The other side does not know the key, or a frame was changed on its way."""


class Wire:
    """Frames over one connection.

    Args:
        connection: A connected socket; its own timeout applies to the proofs.
        key: What both sides know.
        listens: Whether this side has listened; the other one has connected.

    Raises:
        StrangerError: The other side does not know the key.
    """

    def __init__(self, connection: socket.socket, key: bytes, *, listens: bool) -> None:
        self._connection = connection
        self._sends = threading.Lock()
        mine = os.urandom(_NONCE)
        connection.sendall(mine)
        other = self._read(_NONCE)
        both = mine + other if listens else other + mine
        proofs = [_code(key, name + both) for name in (b"listens", b"connects")]
        own, wanted = proofs if listens else proofs[::-1]
        if listens:  # it proves itself after the other side has
            self._require(wanted)
        connection.sendall(own)
        if not listens:
            self._require(wanted)
        session = [_code(key, name + both) for name in (b"from listener", b"to listener")]
        self._out, self._in = session if listens else session[::-1]
        self._sent = self._received = 0
        connection.settimeout(None)

    def fileno(self) -> int:
        """The descriptor, for `select`."""
        return self._connection.fileno()

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Sends a frame.

        Args:
            kind: One byte.
            content: At most a MiB.
        """
        head = _HEAD.pack(kind, len(content))
        with self._sends:
            code = _code(self._out, self._sent.to_bytes(8, "big") + head + content)
            self._sent += 1
            self._connection.sendall(head + content + code)

    def receive(self) -> tuple[bytes, bytes]:
        """The next frame: its kind and its content.

        Raises:
            EOFError: The other side has closed the connection.
            StrangerError: The frame is not what the other side has sent.
        """
        head = self._read(_HEAD.size)
        kind, size = _HEAD.unpack(head)
        if size > _LONGEST:
            raise StrangerError
        content, code = self._read(size), self._read(_CODE)
        count = self._received.to_bytes(8, "big")
        if not hmac.compare_digest(code, _code(self._in, count + head + content)):
            raise StrangerError
        self._received += 1
        return kind, content

    def close(self) -> None:
        """Closes the connection, also under a thread that reads it."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side has done so
            pass
        self._connection.close()

    def _require(self, proof: bytes) -> None:
        try:
            found = self._read(_CODE)
        except EOFError:  # the other side has found that keys differ
            raise StrangerError from None
        if not hmac.compare_digest(found, proof):
            raise StrangerError

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            data = self._connection.recv(size - len(parts))
            if not data:
                raise EOFError
            parts += data
        return bytes(parts)


def _code(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def key_file(environ: Mapping[str, str]) -> str:
    """The file with the key, where no variable has it."""
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "popdist", "node-key")


def read_key(environ: Mapping[str, str], *, makes: bool) -> bytes | None:
    """The key of this user's nodes.

    Args:
        environ: The environment.
        makes: Whether a missing file is written.

    Returns:
        The key; None where there is no file yet, which the first node writes.

    Raises:
        LaunchError: The key is too short, or others can read its file.
    """
    text = environ.get(KEY, "")
    if not text:
        path = key_file(environ)
        if makes:
            _make(path)
        try:
            with open(path, encoding="ascii") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read().strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LaunchError(
                "PD123", f"the key of the nodes cannot be read: {error.strerror}", value=path
            ) from None
        if mode & 0o077:
            raise LaunchError(
                "PD123",
                "others can read the key of the nodes",
                value=f"{path}, mode {mode & 0o777:o}",
                hint=f"chmod 600 {path}, or remove it: the first node writes another one",
            )
    if len(text) < _LEAST_KEY:
        raise LaunchError(
            "PD123",
            "the key of the nodes is too short",
            value=f"{len(text)} characters",
            accepted=f"at least {_LEAST_KEY}, such as those of: openssl rand -hex 16",
        )
    return text.encode()


def _make(path: str) -> None:
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    key = os.urandom(16).hex()
    whole = f"{path}.{os.getpid()}"  # another node may read the file at any time
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{key}\n")
        os.link(whole, path)
    except FileExistsError:  # another job has made it meanwhile
        pass
    finally:
        os.unlink(whole)
