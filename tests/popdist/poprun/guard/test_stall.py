"""What a guard notices about waiting, and the stacks that it asks for."""

import os
import signal
import subprocess
import sys
import time

from popdist import program_status
from popdist.poprun.guard.stall import ProgramStatus, StallWatch
from popdist.poprun.protocol.processes import process_state

SAID = (
    b"[2026-01-01: W stall_inspector.cc:107] One or more tensors were submitted to be reduced ...\n"
    b"Missing ranks:\n1: [allreduce.a, allreduce.b]\n3: [allreduce.a]\n"
)


def start(code, mine):
    """A program that was given a status file, and has got as far as to say ready."""
    environment = {**os.environ, program_status.VARIABLE: str(mine.fd)}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        pass_fds=[mine.fd],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    return process


def finish(process):
    process.kill()
    process.communicate()


WAITS = (
    "import popdist, sys, time\nfrom popdist.program_status import waiting\n"
    "def deep():\n"
    "    with waiting('the meeting'):\n"
    "        print('ready', flush=True)\n"
    "        sys.stdin.readline()\n"
    "    print('ready', flush=True)\n"
    "    time.sleep(60)\n"
    "deep()"
)


def test_a_program_shows_its_stacks_as_often_as_it_is_asked():
    mine = ProgramStatus()
    process = start(WAITS, mine)
    try:
        for _ in range(2):
            text = mine.dump()
            assert text.count("in deep") == 1
            assert "most recent call first" in text
        assert mine.position()[0] == process.pid
        assert mine.position()[2] == "the meeting"
    finally:
        finish(process)
    assert "has ended" in mine.dump()


def test_a_stopped_program_is_not_asked():
    mine = ProgramStatus()
    process = start(WAITS, mine)
    try:
        process.send_signal(signal.SIGSTOP)
        while process_state(process.pid) != "T":
            time.sleep(0.001)
        assert "stopped" in mine.dump()
    finally:
        finish(process)


def test_a_worker_does_not_speak_for_its_parent():
    mine = ProgramStatus()
    code = (
        "import popdist, os, subprocess, sys, time\n"
        "if os.fork() == 0:\n"
        "    with popdist.program_status.waiting('nothing'): pass\n"
        "    subprocess.run([sys.executable, '-c', 'import popdist'], close_fds=False)\n"
        "    os._exit(0)\n"
        "os.wait()\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    process = start("import popdist.program_status\n" + code, mine)
    try:
        assert mine.position()[0] == process.pid
        assert mine.position()[2] == ""
    finally:
        finish(process)


def test_a_file_that_is_not_the_guards_is_left_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with path.open("r+b") as file:
        subprocess.run(
            [sys.executable, "-c", "import popdist"],
            env={**os.environ, program_status.VARIABLE: str(file.fileno())},
            pass_fds=[file.fileno()],
            check=True,
        )
    assert path.read_bytes() == b"mine"


def test_long_waiting_is_told_once_and_its_end_too():
    mine = ProgramStatus()
    process = start(WAITS, mine)
    try:
        watch = StallWatch(0.05, process.pid, mine)
        assert list(watch.look()) == []
        time.sleep(0.06)
        assert list(watch.look()) == [{"what": "waits", "where": "the meeting"}]
        assert list(watch.look()) == []
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert list(watch.look()) == [{"what": "moves"}]
        time.sleep(0.06)
        assert list(watch.look()) == []  # it is busy, which is nobody's business
    finally:
        finish(process)


def test_a_program_that_says_nothing_is_mute():
    watch = StallWatch(0.01, os.getpid(), ProgramStatus())
    time.sleep(0.02)
    assert list(watch.look()) == [{"what": "mute"}]
    assert list(watch.look()) == []


def test_without_a_limit_nothing_is_looked_at():
    watch = StallWatch(0, os.getpid(), ProgramStatus())
    assert watch.interval is None
    assert list(watch.look()) == list(watch.hear(SAID)) == []


def test_horovods_words_are_heard_once_and_when_they_are_whole():
    watch = StallWatch(1, os.getpid(), ProgramStatus())
    told = []
    for end in range(len(SAID) + 1):
        told += watch.hear(SAID[:end])
    # After each whole line, and each rank with the tensors that it lacks itself.
    assert told == [
        {"what": "horovod", "missing": "1", "where": "allreduce.a, allreduce.b"},
        {"what": "horovod", "missing": "3", "where": "allreduce.a"},
    ]
    assert list(watch.hear(SAID)) == []
