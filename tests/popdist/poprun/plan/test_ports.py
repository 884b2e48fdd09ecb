"""Ports are found among those that nobody is given by chance, and are never listened on."""

import socket
from pathlib import Path

from popdist.poprun.plan import rendezvous
from popdist.poprun.plan.rendezvous import find_ports, port_is_free


def test_a_taken_port_is_not_free():
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as holder:
            holder.bind((address, 0))
            holder.listen()
            assert not port_is_free(holder.getsockname()[1])


def test_found_ports_are_free_and_below_the_kernels_own():
    first = find_ports(4)
    assert first + 3 < int(Path(rendezvous._EPHEMERAL).read_text().split()[0])
    for port in range(first, first + 4):
        with socket.socket() as taker:
            taker.bind(("", port))


def test_all_of_several_ports_must_be_free():
    taken = set(range(15000, 32768, 3))
    assert find_ports(3, lambda port: port not in taken) is None
    assert find_ports(2, lambda port: port not in taken) is not None


def test_more_ports_than_there_are():
    assert find_ports(40000) is None
