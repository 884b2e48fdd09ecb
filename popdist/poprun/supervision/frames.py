"""The records that guards send to the launcher: encoding and decoding, pure.

A frame is ``index:uint32 kind:uint8 length:uint16`` and the payload, at most ``PIPE_BUF`` bytes
together, so that frames of many guards that write to one pipe never mix (POSIX promises that such
writes are atomic).
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("=IBH")

LARGEST_PAYLOAD = 4096 - _HEADER.size
"""Bytes of a payload; PIPE_BUF is 4096 on Linux."""

STARTED, ENDED, OUT, ERR, OUT_MORE, ERR_MORE, NOTE, STACKS, STACKS_MORE = range(1, 10)
"""Kinds of frames; those with MORE carry text that goes on in the next frame."""


def encode(index: int, kind: int, payload: bytes) -> bytes:
    """One frame.

    Args:
        index: The instance that speaks.
        kind: One of this module's kinds.
        payload: At most `LARGEST_PAYLOAD` bytes.

    Returns:
        The frame.
    """
    return _HEADER.pack(index, kind, len(payload)) + payload


def encode_text(index: int, kind: int, more: int, text: bytes) -> Iterator[bytes]:
    """Frames for a text of any length.

    Args:
        index: The instance that speaks.
        kind: Kind of the last frame.
        more: Kind of the frames before it.
        text: The bytes.

    Yields:
        The frames in order.
    """
    while len(text) > LARGEST_PAYLOAD:
        yield encode(index, more, text[:LARGEST_PAYLOAD])
        text = text[LARGEST_PAYLOAD:]
    yield encode(index, kind, text)


class Decoder:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Takes what was read.

        Args:
            data: The next bytes of the stream.

        Yields:
            Index, kind and payload of every frame that is complete.
        """
        buffer = self._pending + data
        position = 0
        while len(buffer) - position >= _HEADER.size:
            index, kind, length = _HEADER.unpack_from(buffer, position)
            end = position + _HEADER.size + length
            if end > len(buffer):
                break
            yield index, kind, buffer[position + _HEADER.size : end]
            position = end
        self._pending = buffer[position:]


def encode_fields(**fields: object) -> bytes:
    """A payload of named values, one a line; line feeds in values become spaces."""
    lines = (f"{name}={value}".replace("\n", " ") for name, value in fields.items())
    return "\n".join(lines).encode()


def decode_fields(payload: bytes) -> dict[str, str]:
    """The named values of a payload."""
    return dict(
        line.split("=", 1) for line in payload.decode(errors="replace").split("\n") if "=" in line
    )
