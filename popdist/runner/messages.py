"""Sends the function to the instances and the answers back, over a socket.

The instances of a local job use a socket in the caller's private folder. Instances on other hosts
connect over TCP to one of the caller's addresses. Every message is authenticated with a key that
only the job's own processes have (in their environment): answers are pickles, and a pickle from
another process could run code.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

CONTACT = "POPDIST_CALLER"
"""The variable by which instances find their caller: ``<key> tcp <port> <address>...``, or
``<key> unix <folder>``, which may have blanks. Private between the two."""

_FETCH, _ANSWER = b"fetch ", b"answer "
_LENGTH, _SIGNATURE = 8, 32
_LONGEST_REQUEST = 32
_PATIENCE_SECONDS = 20.0
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_INTERFACE_REQUEST = 40
_ADDRESS = slice(20, 24)


class Server:
    """Sends the call to instances that ask for it, and receives their answers.

    Args:
        call: The bytes that instances get.
        folder: A private folder for the socket.
        hosts: Other hosts of the job; none for a local job.

    Attributes:
        contact: The value of `CONTACT`.
        answers: The last answer of each instance, by index.
    """

    def __init__(self, call: bytes, folder: str, hosts: Sequence[str] = ()) -> None:
        self.answers: dict[int, bytes] = {}
        self._call = call
        self._key = os.urandom(_SIGNATURE)
        if hosts:
            self._socket = socket.create_server(("", 0), backlog=512)
            place = " ".join(["tcp", str(self._socket.getsockname()[1]), *_addresses(hosts)])
        else:
            self._socket = socket.socket(socket.AF_UNIX)
            with _socket_in(folder) as path:
                self._socket.bind(path)
            self._socket.listen(512)
            place = f"unix {folder}"
        self.contact = f"{self._key.hex()} {place}"
        threading.Thread(target=self._accept, name="popdist.run", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the socket for new connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_PATIENCE_SECONDS)
            try:
                request = _receive(connection, self._key, longest=_LONGEST_REQUEST)
                if request.startswith(_FETCH):
                    _send(connection, self._key, self._call)
                elif request.startswith(_ANSWER):
                    index = int(request.removeprefix(_ANSWER))
                    self.answers[index] = _receive(connection, self._key)
                    _send(connection, self._key, b"taken")
            except (OSError, ValueError):  # an unknown process, or an instance that has died
                return


def fetch(contact: str, index: int) -> bytes:
    """Fetches the call from the caller.

    Raises:
        OSError: The caller cannot be reached.
    """
    key, connection = _connect(contact)
    with connection:
        _send(connection, key, _FETCH + str(index).encode())
        return _receive(connection, key)


def give(contact: str, index: int, answer: bytes) -> None:
    """Sends an answer to the caller, and waits until the caller has received it.

    Raises:
        OSError: The caller cannot be reached.
    """
    key, connection = _connect(contact)
    with connection:
        _send(connection, key, _ANSWER + str(index).encode())
        _send(connection, key, answer)
        _receive(connection, key)


def _connect(contact: str) -> tuple[bytes, socket.socket]:
    key, family, place = contact.split(" ", 2)
    if family == "unix":
        connection = socket.socket(socket.AF_UNIX)
        with _socket_in(place) as path:
            connection.connect(path)
        return bytes.fromhex(key), connection
    port, *addresses = place.split(" ")
    failures = []
    for address in addresses:
        try:
            connection = socket.create_connection((address, int(port)), _PATIENCE_SECONDS / 4)
        except OSError as error:  # noqa: PERF203 - a few addresses
            failures.append(f"{address}: {error}")
        else:
            connection.settimeout(None)
            return bytes.fromhex(key), connection
    raise OSError(f"the process that called popdist.run cannot be reached ({'; '.join(failures)})")


@contextmanager
def _socket_in(folder: str) -> Iterator[str]:
    """The path of the socket through a descriptor, as socket paths are limited to 107 bytes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/socket"
    finally:
        os.close(fd)


def _addresses(hosts: Sequence[str]) -> list[str]:
    """This machine's addresses on the routes to the hosts, and its name.

    Where a host's name means something to ssh or Slurm alone, all addresses of this machine follow.
    """
    found: dict[str, None] = {}
    unknown = False
    for host in hosts:
        # Connecting a datagram socket sends nothing: it only chooses the route.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, 9))
            except OSError:
                unknown = True
            else:
                found[probe.getsockname()[0]] = None
    found[socket.gethostname()] = None
    return [*found, *(one for one in (_own_addresses() if unknown else ()) if one not in found)]


def _own_addresses() -> Iterator[str]:
    """The IPv4 addresses of this machine's network interfaces, without the loopback's."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                request = os.fsencode(name).ljust(_INTERFACE_REQUEST, b"\0")
                answer = fcntl.ioctl(probe, _GET_ADDRESS, request)
                address = socket.inet_ntoa(answer[_ADDRESS])
                if not address.startswith("127."):
                    yield address


def _send(connection: socket.socket, key: bytes, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(_LENGTH, "big") + _sign(key, data))
    connection.sendall(data)


def _receive(connection: socket.socket, key: bytes, longest: int | None = None) -> bytes:
    import hmac

    length = int.from_bytes(_read(connection, _LENGTH), "big")
    if longest is not None and length > longest:
        raise ValueError(length)
    signature = _read(connection, _SIGNATURE)
    data = _read(connection, length)
    if not hmac.compare_digest(signature, _sign(key, data)):
        raise ValueError(length)
    return data


def _sign(key: bytes, data: bytes) -> bytes:
    import hmac

    return hmac.digest(key, data, "sha256")


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError
        data += part
    return bytes(data)
