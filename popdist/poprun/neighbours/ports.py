"""Finds ports for programs that meet by one, without ever listening on any."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LOWEST = 15000
_HIGHEST = 32767
_EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
_ATTEMPTS = 200


def find_ports(count: int, is_free: Callable[[int], bool] | None = None) -> int | None:
    """Finds consecutive free ports.

    They lie below those that the kernel hands out by itself, so that no connection can be given
    one of them between this look and the program's start.

    Args:
        count: How many.
        is_free: Tells whether a port of this machine is free; None to ask the kernel.

    Returns:
        The first of them; None where none were found.
    """
    is_free = is_free or port_is_free
    lowest, highest = _range()
    span = highest - lowest + 2 - count
    if span < 1:
        return None
    for _ in range(_ATTEMPTS):
        first = lowest + int.from_bytes(os.urandom(4), "big") % span
        if all(is_free(first + i) for i in range(count)):
            return first
    return None


def _range() -> tuple[int, int]:
    try:
        with open(_EPHEMERAL, encoding="ascii") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first = _HIGHEST + 1
    # A machine whose kernel hands out low ports too has no range that is safe; this one is tried.
    return _LOWEST, _HIGHEST if first <= _LOWEST + 1000 else min(_HIGHEST, first - 1)


def port_is_free(port: int) -> bool:
    """Whether a program could take a port of this machine.

    Args:
        port: The port.

    Returns:
        True where it could be bound; it is released again at once.
    """
    import _socket  # `socket` adds enums and selectors, for 5 ms

    for family, address in ((_socket.AF_INET6, "::"), (_socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            probe = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:  # no IPv6 here
            continue
        try:
            probe.bind((address, port))
        except OSError:
            return False
        finally:
            probe.close()
    return True
