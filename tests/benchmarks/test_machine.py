import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import machine
from benchmarks.machine import (
    ACCEPTED_OTHERS,
    Clock,
    busy_reason,
    busy_seconds,
    kernel_seconds,
    others_between,
)

STAT = """\
cpu  1000 200 300 4000 500 60 70 80 90 0
cpu0 600 100 200 3000 400 50 60 70 80 0
cpu1 400 100 100 1000 100 10 10 10 10 0
cpu11 9000 0 0 0 0 0 0 0 0 0
intr 12345
ctxt 999
"""
SECONDS = st.floats(0, 1e6)


def test_busy_time_is_user_nice_system_and_stolen_time_of_the_cores_we_may_use():
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_seconds(STAT, {0}) == pytest.approx((600 + 100 + 200 + 70) * tick)
    assert busy_seconds(STAT, {0, 1}) == pytest.approx((970 + 610) * tick)
    assert busy_seconds(STAT, {5}) == 0


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.floats(0.001, 1e6))
def test_what_others_used_is_all_less_our_own(busy, own, used, ours, wall):
    before = Clock(0.0, busy, own)
    after = Clock(wall, busy + used + ours, own + ours)
    assert others_between(before, after) == pytest.approx(used / wall, rel=1e-3, abs=1e-2 / wall)


@given(SECONDS, SECONDS)
def test_others_never_use_less_than_nothing(busy, own):
    # The kernel books our time in ticks and tells it to us precisely: the two may disagree.
    assert others_between(Clock(0, 0, 0), Clock(1, min(busy, own), own)) == 0


def test_nothing_is_claimed_where_the_machine_does_not_tell():
    assert others_between(Clock(0, None, 0), Clock(1, None, 1)) is None
    assert others_between(Clock(0, 0, 0), Clock(0, 1, 0)) is None


@given(st.floats(0, 64), st.floats(0, 100), st.integers(1, 64))
def test_verdicts_are_refused_where_others_worked_whatever_the_load_average(others, load, cores):
    reason = busy_reason(others, load, cores)
    assert (reason is not None) == (others > ACCEPTED_OTHERS)
    assert reason is None or f"{others:.2f} cores" in reason


def test_the_load_average_decides_where_nothing_better_is_known():
    assert busy_reason(None, 0.1, 2) is None
    assert "load average 1.00" in busy_reason(None, 1.0, 2)


def test_the_time_of_the_kernels_threads_is_added_up_and_nobody_elses(tmp_path):
    for number, (name, parent) in enumerate([("(kworker/0:1)", 2), ("(a) b (c)", 2), ("(sh)", 1)]):
        (tmp_path / str(number)).mkdir()
        columns = f"S {parent} 0 0 0 -1 0 0 0 0 0 30 12 7 7 20 0"
        (tmp_path / str(number) / "stat").write_text(f"{number} {name} {columns}")
    (tmp_path / "sys").mkdir()
    assert kernel_seconds(tmp_path) == pytest.approx(2 * 42 / os.sysconf("SC_CLK_TCK"))


def test_our_own_children_are_not_others():
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    before = Clock.now()
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert Clock.now().own - before.own >= 0.3


def test_a_watch_is_complete_also_when_the_block_fails():
    with pytest.raises(KeyError), machine.watch() as seen:
        raise KeyError
    assert seen.seconds > 0


def test_the_description_names_what_matters_and_nobody():
    facts = machine.describe()
    assert {
        "description",
        "cpu",
        "cores",
        "l3_cache",
        "memory_gib",
        "kernel",
        "python",
        "mpirun",
        "versions",
        "commit",
    } == set(facts)
    assert facts["versions"]["numpy"]
    assert os.uname().nodename not in facts["description"].split()
