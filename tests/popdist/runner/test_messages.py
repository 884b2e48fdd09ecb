import os
import socket
import threading
from contextlib import suppress

import pytest

from popdist.runner import messages
from popdist.runner.messages import Server, fetch, give


@pytest.mark.parametrize("hosts", [(), ("localhost",)])
def test_a_call_goes_out_and_answers_come_back(tmp_path, hosts):
    deep = tmp_path / ("a folder with blanks " * 5) / ("x" * 120)  # longer than a socket's path
    deep.mkdir(parents=True)
    call = os.urandom(3 << 20)
    with Server(call, str(deep), hosts) as server:
        threads = [
            threading.Thread(target=give, args=(server.contact, index, bytes([index]) * index))
            for index in range(1, 9)
        ]
        for thread in threads:
            thread.start()
        assert fetch(server.contact, 0) == call
        for thread in threads:
            thread.join()
        assert server.answers == {index: bytes([index]) * index for index in range(1, 9)}
    with pytest.raises(OSError):  # noqa: PT011 - refused, or no longer there
        fetch(server.contact, 0)


def test_without_the_key_nothing_is_given_or_taken(tmp_path):
    with Server(b"call", str(tmp_path), ("localhost",)) as server:
        key, rest = server.contact.split(" ", 1)
        wrong = f"{'0' * len(key)} {rest}"
        with pytest.raises(OSError):  # noqa: PT011 - the connection ends
            fetch(wrong, 0)
        with pytest.raises(OSError):  # noqa: PT011
            give(wrong, 0, b"evil")
        _, port, address, *_ = rest.split(" ")
        with socket.create_connection((address, int(port)), 5) as stranger:
            # A length that would fill the memory is not believed.
            stranger.sendall((1 << 62).to_bytes(8, "big") + bytes(32))
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert server.answers == {}
        assert fetch(server.contact, 0) == b"call"


def test_addresses_are_those_on_the_way_to_the_hosts():
    assert messages._addresses(["127.0.0.1", "no.such.host.invalid"])[0] == "127.0.0.1"
