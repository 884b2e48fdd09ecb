"""What can go wrong with a job, and what is said about it: one test a row.

Other rows of the matrix stand where their subject is: killed, crashed, hung and stopped instances,
interrupts, and the deaths of poprun, mpirun and guards in `test_endings`; hosts that cannot be
reached or vanish in `tests/hosts`; partitions in `tests/popdist/poprun/partitions`; malformed
command lines in `tests/popdist/poprun`.
"""

import sys
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, run_command
from tests.distributed.warm import python

PYTHON = [sys.executable, "-c"]
HERE = "import os, sys, time\nindex = int(os.environ['POPDIST_INSTANCE_INDEX'])\n"
HOROVOD = HERE + "import popdist, torch, horovod.torch as hvd\n"


def poprun(*words, mpirun=None, **more):
    chosen = [f"--mpirun={mpirun}"] if mpirun else []
    return run_command([*LAUNCHER, *chosen, *words], **more)


def summary(output):
    """What the launcher itself said."""
    return [line[len("poprun: ") :] for line in output.splitlines() if line.startswith("poprun: ")]


def test_an_instance_raises_and_each_error_is_printed_once_with_its_instance():
    # Both fail; the second because the first has left it alone in an exchange.
    code = HOROVOD + (
        "hvd.init()\nif index == 1: raise ValueError('the reason')\n"
        "hvd.allreduce(torch.ones(1), name='gradient')"
    )
    status, output = poprun("-np", "2", *python("torch"), "-c", code)
    assert status == 1
    said = summary(output)
    assert said[0].startswith("instance 1 on localhost (rank 1, PID ")
    assert not any("Error" in line for line in said)  # what was printed is not repeated
    assert [line for line in output.splitlines() if "the reason" in line] == [
        "[1] ValueError: the reason"
    ]


def test_equal_errors_of_all_instances_are_one():
    # Otherwise mpirun may end instances that have not printed theirs yet.
    late = "import atexit, time\natexit.register(time.sleep, 1)\n"
    code = late + "def main():\n    {}['missing']\nmain()"
    status, output = poprun("-np", "4", *PYTHON, code)
    assert status == 1
    assert output.count("Traceback") == output.count("KeyError") == 1
    assert "[0-3] KeyError: 'missing'" in output
    assert len(summary(output)) == 3  # who failed, what became of the others, the exit code


def test_horovods_own_words_are_the_diagnosis_and_the_users_line_ends_it():
    code = HOROVOD + (
        "hvd.init()\n"
        "def exchange(): return hvd.allreduce(torch.ones(2 + index), name='gradient')\n"
        "exchange()"
    )
    status, output = poprun("-np", "2", *python("torch"), "-c", code)
    assert status == 1
    said = summary(output)
    errors = [line for line in output.splitlines() if "HorovodInternalError: " in line]
    assert len(errors) == 1
    assert "[0-1] horovod.common.exceptions.HorovodInternalError: Mismatched ALLREDUCE" in errors[0]
    assert not any("another instance had left" in line for line in said)
    assert not any("Traceback" in line or "mpi_ops.py" in line for line in said)
    assert "  at <string>, line 5, in exchange" in said


def test_who_waits_for_whom_is_said_once_and_the_job_goes_on():
    code = HOROVOD + (
        "def late():\n    time.sleep(4)\n"
        "def meet():\n    popdist.synchronize()\n"
        "popdist.init()\nif index == 1: late()\nmeet()"
    )
    status, output = poprun("-np", "2", "--stall-warning=1", *python("torch"), "-c", code)
    assert status == 0, output
    assert output.count("no progress in a collective for 1 s; the job continues") == 1
    said = summary(output)
    (waits,) = [line for line in said if " waits in " in line]
    assert waits.startswith("  instance 0 on localhost")
    assert waits.endswith("at <string>, line 7, in meet")
    (missing,) = [line for line in said if line.startswith("  missing: ")]
    assert missing.startswith("  missing: instance 1 on localhost")
    assert missing.endswith("at <string>, line 5, in late")


def test_an_instance_ends_early_and_says_goodbye():
    code = HOROVOD + "hvd.init()\nif index == 0: hvd.allreduce(torch.ones(1), name='gradient')"
    status, output = poprun("-np", "2", *python("torch"), "-c", code)
    assert status == 1
    assert "it reported that another instance had left" in output


def test_an_instance_vanishes_with_exit_code_0():
    # mpirun itself notices who leaves without a word.
    code = HOROVOD + (
        "hvd.init()\nif index == 1: os._exit(0)\nhvd.allreduce(torch.ones(1), name='gradient')"
    )
    status, output = poprun("-np", "2", *python("torch"), "-c", code)
    assert status not in (0, 143)
    assert "instance 1 ended with exit code 0" in output


@pytest.mark.parametrize(
    ("program", "waits", "stack"),
    [
        ("if index == 1: hang()\npopdist.init()", "waits in popdist.init", "basics.py"),
        (
            "popdist.init()\nif index == 1: hang()\npopdist.synchronize()",
            "waits in popdist.synchronize",
            "in synchronize",
        ),
        # The same tensor again and again, as in training, goes through Horovod's cache of answers.
        (
            (
                "popdist.init()\n"
                "for step in range(20):\n"
                "    if index == 1 and step == 19: hang()\n"
                "    hvd.allreduce(torch.ones(1), name='gradient')"
            ),
            "has not submitted allreduce.gradient",
            "in allreduce",
        ),
    ],
    ids=["before-init", "in-a-barrier", "in-an-allreduce"],
)
def test_an_instance_hangs_while_another_waits(program, waits, stack):
    code = HOROVOD + "def hang(): time.sleep(300)\n" + program
    status, output = poprun("-np", "2", "--stall-timeout=1", *python("torch"), "-c", code)
    assert status == 124, output
    assert "no progress in a collective for 1 s" in output
    assert waits in output
    assert "missing: instance 1 on localhost" in output
    assert "in hang" in output  # the stack of the one that is missing
    assert stack in output  # and of the one that waits


def test_instances_that_wait_for_different_tensors_are_named_with_their_own():
    # They meet first, so that none begins to wait before the other has started.
    code = HOROVOD + (
        "hvd.init()\nhvd.allreduce(torch.ones(1), name='both')\n"
        "hvd.allreduce(torch.ones(1), name=f'tensor{index}')"
    )
    status, output = poprun("-np", "2", "--stall-timeout=1", *python("torch"), "-c", code)
    assert status == 124, output
    lines = {line.split()[2]: line for line in summary(output) if "missing: instance" in line}
    assert "which has not submitted allreduce.tensor1" in lines["0"]
    assert "which has not submitted allreduce.tensor0" in lines["1"]


def test_a_stopped_instance_is_missing():
    code = HERE + "import popdist, signal\nif index: os.kill(os.getpid(), signal.SIGSTOP)\n"
    status, output = poprun(
        "-np", "2", "--stall-timeout=1", "--grace-period=1", *PYTHON, code + "time.sleep(300)"
    )
    assert status == 124
    assert "missing: instance 1 on localhost" in output
    assert "which is stopped" in output


def test_a_program_without_popdist_is_said_to_be_out_of_sight():
    status, output = poprun(
        "-np", "2", "--stall-timeout=0.5", "--timeout=3", *PYTHON, "import time; time.sleep(300)"
    )
    assert status == 124
    assert "instances 0 and 1 have not imported popdist so far" in output
    assert output.count('File "<string>", line 1 in <module>') == 2, output


def test_a_program_that_is_not_python_has_no_stacks():
    status, output = poprun("-np", "2", "--timeout=1", "sleep", "300")
    assert status == 124
    assert output.count("(no Python stacks: the program is not Python") == 2, output


def test_an_instance_stays_when_the_others_have_ended():
    code = HERE + "if index == 1: time.sleep(300)"
    status, output = poprun("-np", "2", "--stall-timeout=0.5", "--timeout=4", *PYTHON, code)
    assert status == 124
    assert "instance 0 ended with exit code 0 more than 0.5 s ago, and instance 1 still" in output


def test_the_time_is_up():
    code = "import popdist, time\ndef train(): time.sleep(300)\ntrain()"
    status, output = poprun("-np", "2", "--timeout=2", *PYTHON, code)
    assert status == 124
    assert "the job was ended after 2 s" in output
    assert output.count("in train") == 2


@contextmanager
def memory_limit(limit):
    """A control group with little memory; gives the file into which its members are written."""
    name = f"popdist-test-{uuid.uuid4().hex}"
    root = Path("/sys/fs/cgroup")
    old = (root / "memory").is_dir()
    group = root / "memory" / name if old else root / name
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        if not old:
            with suppress(OSError):
                (group / "memory.swap.max").write_text("0")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"OUT OF MEMORY IS NOT TESTED: no control group can be made: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def test_the_kernel_kills_for_want_of_memory():
    code = HERE + (
        "kept = []\nwhile index: kept.append(bytearray(b'x' * (1 << 20)))\ntime.sleep(300)"
    )
    with memory_limit(150 << 20) as members:
        script = f'echo $$ > {members} && exec "$@"'
        status, output = run_command(
            ["sh", "-c", script, "sh", *LAUNCHER, "-np", "2", *PYTHON, code]
        )
    assert status == 137
    assert "instance 1 on localhost" in output
    assert "SIGKILL" in output
    assert "out of memory (the kernel killed a process of its control group" in output


def test_python_has_no_memory_left():
    code = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\n"
    status, output = poprun(*PYTHON, code + "bytearray(1 << 30)")
    assert status == 1
    assert "out of memory (it said: MemoryError)" in output


@contextmanager
def small_disk(folder, size):
    """A folder on a disk of its own, or of this machine's where one cannot be had."""
    from subprocess import run

    folder.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False).returncode:
        pytest.skip("A FULL DISK IS NOT TESTED: a small file system cannot be mounted")
    try:
        yield folder
    finally:
        run(["umount", folder], check=True)


def test_the_disk_for_logs_is_full(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        code = "print('x' * 100_000); print('the end')"
        status, output = poprun("-np", "2", f"--log-dir={disk}", *PYTHON, code)
        assert sum(file.stat().st_size for file in disk.glob("latest/*.out")) > 0
    assert status == 0
    assert output.count("the end") == 2
    assert "the output that is kept ends here: [Errno 28]" in output
    assert "the result cannot be written" in output


def test_standard_output_is_on_a_full_disk():
    script = f"{' '.join(LAUNCHER)} -np 2 echo lost > /dev/full"
    status, output = run_command(["sh", "-c", script])
    assert status == 0  # the job is worth more than its words
    assert "10 bytes of output were lost" in output


def test_nothing_at_all_can_be_said():
    assert run_command(["sh", "-c", f"{' '.join(LAUNCHER)} false >/dev/full 2>&1"]) == (1, "")


def test_the_reader_goes_away(mpirun):
    script = f"{' '.join(LAUNCHER)} --mpirun={mpirun} -np 2 yes | head -1; echo ${{PIPESTATUS[0]}}"
    status, output = run_command(["bash", "-c", script])
    assert status == 0
    assert output.splitlines()[0] == "y"
    assert output.splitlines()[-1] == "141"


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "no mpirun was found"), ("mpirun (Open MPI) 1.10.7", "is not an Open MPI that poprun")],
    ids=["missing", "too-old"],
)
def test_no_mpirun_that_could_be_used(tmp_path, answer, words):
    path = tmp_path / "mpirun"
    if answer:
        path.write_text(f"#!/bin/sh\necho '{answer}'\n")
        path.chmod(0o755)
    status, output = poprun(f"--mpirun={path}", "true")
    assert status == 2
    assert "[PD104]" in output
    assert words in output


def test_more_instances_than_slots():
    status, output = poprun("-np", "3", "--host=localhost:2", "true")
    assert status == 2
    assert "[PD105]" in output
