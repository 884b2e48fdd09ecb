"""The records that guards send to the launcher: encoding and decoding, pure.

A frame is ``index:uint32 kind:uint8 length:uint16`` and the payload. On a pipe with several writers
it is at most ``PIPE_BUF`` bytes long, so that frames of many guards never mix (POSIX promises that
such writes are atomic). On mpirun's streams it is a line of a fixed length, for the same end: see
`encode_line`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Written by hand, as the `struct` module would be loaded for three numbers by every guard.
_HEADER_SIZE = 7
_ORDER = sys.byteorder

LARGEST_PAYLOAD = 4096 - _HEADER_SIZE
"""Bytes of a payload on a pipe with several writers; PIPE_BUF is 4096 on Linux."""

LARGEST_ON_OWN_PIPE = (1 << 16) - 1
"""Bytes of a payload on a pipe with one writer."""

STARTED, ENDED, OUT, ERR, NOTE, STACKS = range(1, 7)
"""Kinds of records."""

MORE = 0x80
"""Added to a kind where the record continues in the next frame of its instance and kind."""

GUARD_KILLED = "its guard was killed"
"""What the proxy of a guard reports as the end of an instance, in the guard's place."""

REFUSED = "refused"
"""The note of a guard for whose program the kernel refuses a process."""

BEATS = 4
"""Signs of life (notes of the kind ``alive``) that guards on several hosts send within the time
after which a silent host is given up."""

LINE_SIZE = 256
"""Bytes of a frame on mpirun's streams."""

_MARK = b"\x1e"


def line_room(token: bytes) -> int:
    """Bytes of a payload in a line that is marked by ``token``."""
    letters = LINE_SIZE - len(_MARK) - len(token) - 1
    return letters // 4 * 3 - _HEADER_SIZE


def encode(index: int, kind: int, payload: bytes) -> bytes:
    """One frame; the payload has at most `LARGEST_PAYLOAD` bytes."""
    header = index.to_bytes(4, _ORDER), kind.to_bytes(1, _ORDER), len(payload).to_bytes(2, _ORDER)
    return b"".join((*header, payload))


def encode_all(
    index: int, kind: int, payload: bytes, largest: int = LARGEST_PAYLOAD
) -> Iterator[bytes]:
    """Frames for a record of any length, with ``largest`` bytes of payload each."""
    while len(payload) > largest:
        yield encode(index, kind | MORE, payload[:largest])
        payload = payload[largest:]
    yield encode(index, kind, payload)


def encode_line(frame: bytes, token: bytes) -> bytes:
    """A frame as a line of `LINE_SIZE` bytes, marked by ``token``.

    mpirun relays output in portions of at most 4096 bytes, cut anywhere in a line, and mixes the
    portions of different programs. With writes of a length that divides 4096, no portion ends
    inside a line.
    """
    import binascii  # for other hosts only

    letters = binascii.b2a_base64(frame, newline=False)
    return (_MARK + token + letters).ljust(LINE_SIZE - 1) + b"\n"


def decode_line(line: bytes, token: bytes) -> tuple[bytes, bytes]:
    """Splits a line of mpirun's standard error into text and frame; the frame may be empty."""
    text, mark, letters = line.partition(_MARK + token)
    if not mark:
        return line, b""
    import binascii

    try:
        return text, binascii.a2b_base64(letters)
    except binascii.Error:  # not a frame
        return line, b""


class Decoder:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Takes the next bytes, and yields index, kind and payload of every complete frame."""
        buffer = self._pending + data
        position = 0
        while len(buffer) - position >= _HEADER_SIZE:
            index = int.from_bytes(buffer[position : position + 4], _ORDER)
            kind = buffer[position + 4]
            start = position + _HEADER_SIZE
            end = start + int.from_bytes(buffer[position + 5 : start], _ORDER)
            if end > len(buffer):
                break
            yield index, kind, buffer[start:end]
            position = end
        self._pending = buffer[position:]


class Assembler:
    """Joins the frames of long records."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], bytes] = {}

    def add(self, index: int, kind: int, payload: bytes) -> bytes | None:
        """Takes a frame; returns the payload of a complete record, else None."""
        if kind & MORE:
            key = (index, kind & ~MORE)
            self._held[key] = self._held.get(key, b"") + payload
            return None
        return self._held.pop((index, kind), b"") + payload

    def rest(self, kind: int) -> list[bytes]:
        """The incomplete records of a kind."""
        return [payload for (_, held), payload in self._held.items() if held == kind]


def encode_fields(**fields: object) -> bytes:
    """A payload of named values, one a line; line feeds in values become spaces."""
    lines = (f"{name}={value}".replace("\n", " ") for name, value in fields.items())
    return "\n".join(lines).encode()


def decode_fields(payload: bytes) -> dict[str, str]:
    """The named values of a payload."""
    return dict(
        line.split("=", 1) for line in payload.decode(errors="replace").split("\n") if "=" in line
    )
