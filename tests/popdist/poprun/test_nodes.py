"""The frames between nodes, and the mistakes that the launcher names before a node waits."""

import os
import socket
import threading

import pytest

from popdist.errors import LaunchError, PopdistError
from popdist.poprun.cli import launch
from popdist.poprun.nodes.wire import KEY, StrangerError, Wire, read_key

ONE, OTHER = b"one key of many nodes", b"another key of nodes"


def pair(first=ONE, second=ONE, between=lambda data: data):
    """Both ends of a connection, or their errors; ``between`` changes what the second one sends."""
    here, near = socket.socketpair()
    far, there = socket.socketpair()
    for one in (here, there):
        one.settimeout(30)

    def carry(source, target, change):
        try:
            while data := source.recv(1 << 16):
                target.sendall(change(data))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    for words in ((near, far, bytes), (far, near, between)):
        threading.Thread(target=carry, args=words, daemon=True).start()
    found = {}

    def make(name, connection, key, listens):
        try:
            found[name] = Wire(connection, key, listens=listens)
        except (StrangerError, EOFError, OSError) as error:
            found[name] = error
            connection.close()

    threads = [
        threading.Thread(target=make, args=words)
        for words in (("listens", here, first, True), ("connects", there, second, False))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found["listens"], found["connects"]


def test_frames_arrive_in_both_directions():
    here, there = pair()
    for number in range(3):
        here.send(b"a", b"x" * number)
        there.send(b"b", bytes(1 << 18))
        assert there.receive() == (b"a", b"x" * number)
        assert here.receive() == (b"b", bytes(1 << 18))
    there.close()
    with pytest.raises(EOFError):
        here.receive()


def test_another_key_is_found_by_both():
    here, there = pair(ONE, OTHER)
    assert isinstance(here, StrangerError)
    assert isinstance(there, StrangerError)


@pytest.mark.parametrize("change", ["bit", "repeated"])
def test_a_changed_or_repeated_frame_is_no_frame(change):
    changes = {
        "bit": lambda data: data.replace(b"safe", b"evil"),
        "repeated": lambda data: data * 2,
    }
    begun = []
    here, there = pair(between=lambda data: changes[change](data) if begun else data)
    begun.append(True)
    there.send(b"r", b"safe")
    if change == "repeated":
        assert here.receive() == (b"r", b"safe")
    with pytest.raises(StrangerError):
        here.receive()


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert read_key(environ, makes=False) is None
    made = read_key(environ, makes=True)
    assert made == read_key(environ, makes=True) == read_key(environ, makes=False)
    [file] = (tmp_path / "popdist").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(LaunchError, match="others can read the key") as raised:
        read_key(environ, makes=False)
    assert raised.value.code == "PD123"
    assert read_key(environ | {KEY: "a text of this job"}, makes=False) == b"a text of this job"
    with pytest.raises(LaunchError, match="too short"):
        read_key({KEY: "short"}, makes=False)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nnodes", "2"], "--nnodes needs --node-rank"),
        (["--nnodes", "2", "--node-rank", "0"], "--nnodes needs --master-addr"),
        (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a"], "there is no such node"),
        (["--nnodes=2", "--node-rank=1", "--master-addr=a", "--host=b"], "exclude each other"),
        (["--nnodes=2", "--node-rank=0", "--master-addr=192.0.2.1"], "node 0 cannot wait"),
    ],
)
def test_mistakes_are_named_before_anything_waits(words, text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    with pytest.raises(PopdistError, match=text):
        launch([*words, "-np", "2", "true"])
