"""Jobs over two hosts, reached by real ssh."""

import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import popdist
from popdist.poprun.protocol.processes import children_of, process_start
from tests.distributed.endings import DETACHING, Job
from tests.distributed.jobs import LAUNCHER, run_command
from tests.hosts.network import Hosts, missing

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"SEVERAL HOSTS ARE NOT TESTED: {missing()}"
)

PYTHON = [sys.executable, "-c"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with Hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def options(hosts, mpirun):
    """Options of poprun for a job on both hosts."""
    return [
        f"--mpirun={mpirun}",
        f"--host={','.join(hosts.addresses)}",
        f"--mpi-global-args={hosts.mpirun_options(mpirun)}",
    ]


def test_instances_are_divided_over_the_hosts(options):
    code = (
        "import socket, sys, popdist as p\n"
        "print(socket.gethostname(), p.topology().instance_index, p.getLocalInstanceIndex())\n"
        "print('error', file=sys.stderr)"
    )
    status, output = run_command(
        [*LAUNCHER, *options, "-np", "4", "--tag-output=yes", *PYTHON, code]
    )
    assert status == 0, output
    expected = [f"[1,{i}]<stdout>:pophost{1 + i // 2} {i} {i % 2}" for i in range(4)]
    expected += [f"[1,{i}]<stderr>:error" for i in range(4)]
    # Open MPI now and then warns about its own ssh.
    lines = output.splitlines()
    assert sorted(lines) == sorted(expected)


def test_lines_stay_whole_when_instances_write_at_once(options):
    code = (
        "import os, sys\n"
        "letter = '\\u6f22\\u00e9xy'[int(os.environ['POPDIST_INSTANCE_INDEX'])]\n"
        "for size in range(0, 9000, 60):\n"
        "    for stream in (sys.stdout, sys.stderr):\n"
        "        data = (letter * size + '|').encode()\n"
        "        stream.buffer.write(data[:size]); stream.flush()\n"
        "        stream.buffer.write(data[size:] + b'\\n'); stream.flush()"
    )
    status, output = run_command([*LAUNCHER, *options, "-np", "4", *PYTHON, code])
    assert status == 0, output[-2000:]
    lines = output.splitlines()
    # Two streams of each instance, each in its own order.
    for letter in "漢éxy":
        own = [len(line) - 1 for line in lines if line == letter * (len(line) - 1) + "|"]
        own = [size for size in own if size]
        assert sorted(own) == sorted([*range(60, 9000, 60)] * 2)
        assert [*dict.fromkeys(own)] == [*range(60, 9000, 60)]
    # A shell's start-up files may say something on a host, too.
    assert len([line for line in lines if line.endswith("|")]) == 4 * 2 * 150


def test_a_failure_is_named_with_its_host(options, hosts):
    code = (
        "import os, time\n"
        "if os.environ['POPDIST_INSTANCE_INDEX'] == '1': raise SystemExit(5)\ntime.sleep(60)"
    )
    status, output = run_command([*LAUNCHER, *options, "-np", "2", *PYTHON, code])
    assert status == 5
    assert f"instance 1 on {hosts.addresses[1]}" in output


def test_horovod_sums_over_the_network(hosts):
    # Horovod belongs to the Open MPI of this environment, whichever generation that is.
    from popdist.poprun.machines.find_mpirun import locate_mpirun

    found = locate_mpirun(os.environ).path
    code = (
        "import torch, horovod.torch as hvd\nhvd.init()\n"
        "print(hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).item())"
    )
    status, output = run_command(
        [*LAUNCHER, f"--host={','.join(hosts.addresses)}", "-np", "2",
         f"--mpi-global-args={hosts.mpirun_options(found)}", *PYTHON, code]
    )  # fmt: skip
    assert (status, output) == (0, "3.0\n3.0\n")


@pytest.mark.parametrize("willing", [True, False], ids=["willing", "stubborn"])
@pytest.mark.parametrize("what", ["interrupt", "poprun", "mpirun"])
def test_nothing_is_left_on_any_host(options, tmp_path, what, willing):
    job = Job(options, tmp_path, *([] if willing else ["ignore"]))
    try:
        job.until_ready()
        if what == "interrupt":
            job.process.send_signal(signal.SIGINT)
        elif what == "poprun":
            job.process.kill()
        else:
            os.kill(job.mpirun, signal.SIGKILL)
        code, _ = job.end(grace=4)
    finally:
        job.clean_up()
    assert code == {"interrupt": 130, "poprun": -signal.SIGKILL, "mpirun": 137}[what]


@pytest.mark.parametrize("ilds", ["1", "2"])
def test_the_guides_command_lines_for_several_hosts_run_with_one_note(options, ilds):
    """Sections 2.3.3 and 2.3.4 of the guide, with the addresses of these hosts."""
    words = ["--numa-aware=yes", "--vipu-server-host=10.3.7.150", "--vipu-partition=P8"]
    words += ["--vipu-cluster=A8", f"--num-ilds={ilds}", "--mpi-global-args=--tag-output"]
    words += ["--mpi-local-args=-x PYTHONPATH", "--num-replicas=8", "--num-instances=2"]
    code = "import popdist as p; print(p.getNumLocalReplicas(), p.getNumTotalReplicas())"
    status, output = run_command([*LAUNCHER, *options, *words, *PYTHON, code])
    assert status == 0, output
    notes = [line for line in output.splitlines() if line.startswith("poprun: ")]
    assert len(notes) == 1
    assert "the V-IPU server 10.3.7.150 is not asked" in notes[0]
    for index in range(2):
        assert f"[1,{index}]<stdout>:4 8" in output.splitlines()


def test_a_function_runs_on_several_hosts_and_answers(options):
    factor = 7

    def where(word):
        import socket

        if word == "fail" and popdist.getInstanceIndex() == 1:
            raise ValueError(word)
        return socket.gethostname(), popdist.getInstanceIndex() * factor

    split = dict(option.removeprefix("--").split("=", 1) for option in options)
    keywords = {name.replace("-", "_"): value for name, value in split.items()}
    answers = popdist.run(where, args=("hello",), num_instances=4, **keywords)
    assert answers == [(f"pophost{1 + i // 2}", i * factor) for i in range(4)]
    with pytest.raises(popdist.JobError, match="instance 1 of 2 raised ValueError: fail"):
        popdist.run(where, args=("fail",), num_instances=2, **keywords)


# What fails on one of two hosts while programs there have detached processes in every way; the exit
# code, and what is said.
FAULTS = {
    "poprun": (-signal.SIGKILL, ""),
    "mpirun": (137, "mpirun was killed by signal 9"),
    # Who notices first decides.
    "daemon": (None, "has lost communication with a remote daemon|has not been heard of for 2 s"),
    "guard": (137, "was ended because its guard was killed"),
    "stopped guards": (143, "SIGTERM"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_nothing_that_was_detached_survives_on_any_host(options, hosts, tmp_path, what):
    expected, said = FAULTS[what]
    more = ["--host-timeout=2", "--grace-period=1"]
    job = Job([*options, *more], tmp_path, program=DETACHING)
    try:
        job.until_ready()
        (mpirun,) = children_of(job.mpirun)  # poprun's own child keeps it
        daemons = [pid for pid in processes(b"orted") + processes(b"prted") if has_guard(pid, job)]
        assert len(daemons) == 2
        guards = [
            guard for one in daemons for proxy in children_of(one) for guard in children_of(proxy)
        ]
        if what == "stopped guards":
            for guard in guards:
                os.kill(guard, signal.SIGSTOP)
            job.process.terminate()
        else:
            victims = {"poprun": job.process.pid, "mpirun": mpirun, "daemon": daemons[0]}
            os.kill(victims.get(what, guards[0]), signal.SIGKILL)
        code, errors = job.end(grace=4)
        assert code == expected or (expected is None and code), errors
        assert re.search(said, errors), errors
        for name, left in (
            ("ssh", lambda: processes(f"{hosts.folder}/key".encode())),
            ("daemons", lambda: [pid for pid in daemons if process_start(pid)]),
            ("folders", lambda: [*tmp_path.rglob("ompi.*"), *hosts.folder.rglob("jf.*")]),
        ):
            until = time.monotonic() + 8
            while left() and time.monotonic() < until:
                time.sleep(0.02)
            assert left() == [], name
    finally:
        job.clean_up()


def has_guard(pid, job):
    """Whether one of a process's children is the proxy of a guard of a job."""
    with suppress(OSError):
        words = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children_of(pid)]
        return any(b"guard/start.py" in one and job.mark.encode() in one for one in words)
    return False


def processes(words):
    """Processes with these words in their command lines."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if words in (place / "cmdline").read_bytes() and process_start(int(place.name)):
                found.append(int(place.name))
    return found
