"""What is known of this machine's shared memory."""

import os

from popdist.poprun.machines.hosts import has_shared_memory


def test_shared_memory_has_room_for_a_segment_of_each_instance():
    facts = os.statvfs("/dev/shm")
    room = facts.f_bavail * facts.f_frsize
    assert has_shared_memory(1) == (room >= 16 << 20)
    assert not has_shared_memory(room // (16 << 20) + 2)


def test_a_machine_without_shared_memory_has_no_room(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", missing)
    assert not has_shared_memory(1)
