import os
import socket
import threading
import time
from contextlib import suppress

import pytest

from popdist.runner import messages
from popdist.runner.messages import Server, fetch, give
from popdist.runner.streams import Stream


def parts(index):
    return [Stream([bytes([index]) * index])]


@pytest.mark.parametrize("hosts", [(), ("localhost",)])
def test_a_call_goes_out_and_answers_come_back(tmp_path, hosts):
    deep = tmp_path / ("a folder with blanks " * 5) / ("x" * 120)  # longer than a socket's path
    deep.mkdir(parents=True)
    call = os.urandom(3 << 20)
    beside = memoryview(os.urandom(2 << 20))
    with Server([Stream([call[:9], call[9:]]), beside], str(deep), hosts) as server:
        threads = [
            threading.Thread(target=give, args=(server.contact, index, parts(index)))
            for index in range(1, 9)
        ]
        for thread in threads:
            thread.start()
        stream, content = fetch(server.contact, 0)
        assert stream.read() == call
        assert content == beside
        assert content.readonly
        for thread in threads:
            thread.join()
        answers = {index: one.read() for index, (one,) in server.answers.items()}
        assert answers == {index: bytes([index]) * index for index in range(1, 9)}
    with pytest.raises(OSError):  # noqa: PT011 - refused, or no longer there
        fetch(server.contact, 0)


def test_without_the_key_nothing_is_given_or_taken(tmp_path):
    with Server([Stream([b"call"])], str(tmp_path), ("localhost",)) as server:
        key, rest = server.contact.split(" ", 1)
        wrong = f"{'0' * len(key)} {rest}"
        with pytest.raises(OSError):  # noqa: PT011 - the connection ends
            fetch(wrong, 0)
        with pytest.raises(OSError):  # noqa: PT011
            give(wrong, 0, parts(4))
        _, port, address, *_ = rest.split(" ")
        with socket.create_connection((address, int(port)), 5) as stranger:
            # A length that would fill the memory is not believed.
            stranger.sendall((1 << 62).to_bytes(8, "big") + bytes(32))
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert server.answers == {}
        assert fetch(server.contact, 0)[0].read() == b"call"


def test_addresses_are_those_on_the_way_to_the_hosts():
    assert messages._addresses(["127.0.0.1", "no.such.host.invalid"])[0] == "127.0.0.1"


def test_the_server_listens_where_its_hosts_reach_it_alone(tmp_path):
    with Server(parts(1), str(tmp_path), ("127.0.0.1",)) as server:
        assert server._socket.getsockname()[0] == "127.0.0.1"


def test_idle_strangers_do_not_keep_an_instance_out(tmp_path, monkeypatch):
    monkeypatch.setattr(messages, "_REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(messages, "_MOST_CONNECTIONS", 4)
    before = threading.active_count()
    with Server(parts(3), str(tmp_path), ("127.0.0.1",)) as server:
        port = server._socket.getsockname()[1]
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        assert fetch(server.contact, 0)[0].read() == bytes([3]) * 3
        assert threading.active_count() <= before + 5
        for one in idle:
            one.close()


def test_a_slow_reader_gets_all_whatever_the_whole_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(messages, "_PATIENCE_SECONDS", 1.5)
    call = os.urandom(24 << 20)
    with Server([Stream([call])], str(tmp_path)) as server:
        key, connection = messages._connect(server.contact)
        receive = connection.recv_into

        class Slow:
            def recv_into(self, view):
                time.sleep(0.04)
                return receive(view)

        messages._send(connection, key, [Stream([b"fetch 0"])])
        began = time.monotonic()
        (stream,) = messages._receive(Slow(), key)
        assert stream.read() == call
        assert time.monotonic() - began > messages._PATIENCE_SECONDS  # sleeps that long at least
