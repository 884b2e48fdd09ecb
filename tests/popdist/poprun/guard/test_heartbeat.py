"""Whether a guard finds out that mpirun's daemon does not read what it writes."""

import os
import time

import pytest

from popdist.poprun.guard.heartbeat import Outlet

SECONDS = 0.2


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def beats(outlet, seconds, between=lambda: None):
    """Whether the outlet was ever stuck while a guard sends its heartbeats."""
    until, stuck = time.monotonic() + seconds, False
    while time.monotonic() < until:
        stuck = stuck or outlet.is_stuck()
        outlet.write(b"alive")
        between()
        time.sleep(SECONDS / 4)
    return stuck


def test_a_daemon_that_reads_is_not_stuck_however_late_it_reads(pipe):
    reader, writer = pipe
    # What was written after the last reading is still there at each look.
    outlet = Outlet(writer, SECONDS)
    assert not beats(outlet, 4 * SECONDS, lambda: os.read(reader, 3))


def test_a_daemon_that_has_stopped_reading_is_stuck(pipe):
    reader, writer = pipe
    outlet = Outlet(writer, SECONDS)
    assert not beats(outlet, SECONDS, lambda: os.read(reader, 5))
    assert beats(outlet, 2 * SECONDS)


def test_a_full_pipe_holds_a_guard_for_no_longer_than_the_limit(pipe):
    outlet = Outlet(pipe[1], SECONDS)
    began = time.monotonic()
    for _ in range(100):
        outlet.write(b"x" * 4096)
    assert time.monotonic() - began < 5 * SECONDS
    assert outlet.is_stuck()


def test_the_time_in_which_the_guard_was_stopped_itself_does_not_count(pipe):
    outlet = Outlet(pipe[1], SECONDS)
    outlet.write(b"alive")
    assert not outlet.is_stuck()
    time.sleep(2 * SECONDS)  # as with SIGSTOP for all processes of the host
    assert not outlet.is_stuck()
