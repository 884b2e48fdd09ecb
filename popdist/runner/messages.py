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

from popdist.runner.streams import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hmac
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from popdist.runner.pickles import Parts

CONTACT = "POPDIST_CALLER"
"""The variable by which instances find their caller: ``<key> tcp <port> <address>...``, or
``<key> unix <folder>``, which may have blanks. Private between the two."""

_FETCH, _ANSWER = b"fetch ", b"answer "
_LENGTH, _SIGNATURE = 8, 32
_LONGEST_REQUEST = 40
_PATIENCE_SECONDS = 20.0
_REQUEST_SECONDS = 5.0
_MOST_CONNECTIONS = 256
_PIECE = 1 << 20
_STREAM, _READ_ONLY = 1 << 63, 1 << 62
_ONE_ROUTE = 2  # an address, and the name of this machine
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_INTERFACE_REQUEST = 40
_ADDRESS = slice(20, 24)


class Server:
    """Sends the call to instances that ask for it, and receives their answers.

    Args:
        call: The parts that instances get.
        folder: A private folder for the socket.
        hosts: Other hosts of the job; none for a local job.

    Attributes:
        contact: The value of `CONTACT`.
        answers: The last answer of each instance, by index.
    """

    def __init__(self, call: Parts, folder: str, hosts: Sequence[str] = ()) -> None:
        self.answers: dict[int, Parts] = {}
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._call = call
        self._key = os.urandom(_SIGNATURE)
        if hosts:
            addresses = _addresses(hosts)
            self._socket = _listen(addresses)
            place = " ".join(["tcp", str(self._socket.getsockname()[1]), *addresses])
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
            self._room.acquire()  # strangers wait in the queue, and are sent away after a while
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._answer(connection)
        finally:
            self._room.release()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_REQUEST_SECONDS)
        try:
            (words,) = _receive(connection, self._key, longest=_LONGEST_REQUEST)
            request = words.read() if isinstance(words, Stream) else b""
            connection.settimeout(_PATIENCE_SECONDS)  # for each piece, not for the whole
            if request.startswith(_FETCH):
                _send(connection, self._key, self._call)
            elif request.startswith(_ANSWER):
                index = int(request.removeprefix(_ANSWER))
                self.answers[index] = _receive(connection, self._key)
                _send(connection, self._key, [Stream([b"taken"])])
        except (OSError, ValueError):  # an unknown process, or an instance that has died
            return


def fetch(contact: str, index: int) -> Parts:
    """Fetches the call from the caller.

    Raises:
        OSError: The caller cannot be reached.
    """
    key, connection = _connect(contact)
    with connection:
        _send(connection, key, [Stream([_FETCH + str(index).encode()])])
        return _receive(connection, key)


def give(contact: str, index: int, answer: Parts) -> None:
    """Sends an answer to the caller, and waits until the caller has received it.

    Raises:
        OSError: The caller cannot be reached.
    """
    key, connection = _connect(contact)
    with connection:
        _send(connection, key, [Stream([_ANSWER + str(index).encode()])])
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


def _listen(addresses: Sequence[str]) -> socket.socket:
    """A server at the address on the routes to the hosts, if there is one for all of them."""
    where = addresses[0] if len(addresses) == _ONE_ROUTE else ""
    try:
        return socket.create_server((where, 0), backlog=512)
    except OSError:  # an address of a network that this process does not see
        return socket.create_server(("", 0), backlog=512)


# A message: the number of its parts, for each part its length and content, and a signature.


def _send(connection: socket.socket, key: bytes, parts: Parts) -> None:
    signature = _signature(key)

    def send(data: memoryview | bytes) -> None:
        view = memoryview(data)
        for at in range(0, view.nbytes, _PIECE):
            piece = view[at : at + _PIECE]
            signature.update(piece)
            connection.sendall(piece)

    send(len(parts).to_bytes(_LENGTH, "big"))
    for part in parts:
        is_stream = isinstance(part, Stream)
        size = part.size if isinstance(part, Stream) else part.nbytes
        kind = _STREAM if is_stream else _READ_ONLY if part.readonly else 0  # type: ignore[union-attr]
        send((size | kind).to_bytes(_LENGTH, "big"))
        for piece in part if isinstance(part, Stream) else (part,):
            send(piece)
    connection.sendall(signature.digest())


def _receive(connection: socket.socket, key: bytes, longest: int = _STREAM) -> Parts:
    """Receives a message.

    Raises:
        ValueError: It has no valid signature, or more than ``longest`` bytes.
    """
    import hmac

    signature = _signature(key)

    def receive(size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view.nbytes:
            count = connection.recv_into(view[:_PIECE])
            if not count:
                raise ConnectionError
            signature.update(view[:count])
            view = view[count:]
        return data

    def number() -> int:
        return int.from_bytes(receive(_LENGTH), "big")

    parts: Parts = []
    left = longest
    count = number()
    if count > left // _LENGTH:
        raise ValueError(count)
    while len(parts) < count:
        word = number()
        size = word & ~(_STREAM | _READ_ONLY)
        left -= size + _LENGTH
        if left < 0:
            raise ValueError(size)
        if word & _STREAM:
            full, rest = divmod(size, _PIECE)
            parts.append(Stream(receive(each) for each in [_PIECE] * full + [rest]))
        else:
            content = memoryview(receive(size))
            parts.append(content.toreadonly() if word & _READ_ONLY else content)
    expected = signature.digest()
    if not hmac.compare_digest(receive(_SIGNATURE), expected):
        raise ValueError(count)
    return parts


def _signature(key: bytes) -> hmac.HMAC:
    import hmac

    return hmac.new(key, digestmod="sha256")
