"""Jobs on partitions: many at once, killed at random, and never two on one device."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from popdist.poprun.partitions.pool import Pool
from tests.distributed.jobs import LAUNCHER, ROOT, run_command

# Announces itself on its device, and only then looks for others that live there: of two programs
# that meet, at least one sees the other.
PROGRAM = """
import os, sys, time

def start(pid):
    try:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]

folder = sys.argv[1]
path = f"{folder}/device-{os.environ['POPDIST_DEVICE_ID']}"
me = f"{os.getpid()} {start(os.getpid())}"
with open(path, "a") as file:
    file.write(me + "\\n")
for line in open(path).read().splitlines():
    pid, began = line.split()
    if line != me and start(pid) == began:
        open(f"{folder}/violation", "a").write(f"{path}: {me} met {line}\\n")
time.sleep(float(sys.argv[2]))
"""
LAUNCHES, KILLED = 16, 6
CLUSTER = "--vipu-cluster=cores-6"


@pytest.fixture(autouse=True)
def pool(tmp_path, monkeypatch):
    monkeypatch.setenv("POPDIST_STATE_DIR", str(tmp_path / "state"))
    return Pool(os.environ, 10.0)


def test_sixteen_launches_and_random_kills_never_share_a_device(tmp_path):
    chance = random.Random(20)  # noqa: S311 - a test that can be repeated
    (tmp_path / "program.py").write_text(PROGRAM)
    shared = [*LAUNCHER, "--vipu-partition=P", "--vipu-server-timeout=120"]
    # Four devices that stay, which most share; two that others make partitions of for themselves.
    code, output = run_command([*shared, CLUSTER, "-np", "4", "--remove-partition=no", "true"])
    assert (code, output) == (0, "")
    own = [*LAUNCHER, CLUSTER, "--vipu-server-timeout=120"]
    commands = [
        [*own, f"--vipu-partition=own{number}", "-np", "1"]
        if number % 4 == 0
        else [*shared, "-np", str(1 + number % 2)]
        for number in range(LAUNCHES)
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    launches = [
        subprocess.Popen(
            [
                *command,
                sys.executable,
                "-S",
                str(tmp_path / "program.py"),
                str(tmp_path),
                f"{chance.uniform(0.05, 0.4):.2f}",
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for command in commands
    ]
    victims = chance.sample(launches, KILLED)
    try:
        for victim in victims:
            time.sleep(chance.uniform(0.0, 0.7))
            victim.send_signal(signal.SIGKILL)
        outputs = [launch.communicate(timeout=150)[0] for launch in launches]
    finally:
        for launch in launches:
            launch.kill()
    assert not (tmp_path / "violation").exists(), (tmp_path / "violation").read_text()
    for launch, output in zip(launches, outputs, strict=True):
        expected = {0, -signal.SIGKILL} if launch in victims else {0}
        assert launch.returncode in expected, output
    used = {path.name for path in tmp_path.glob("device-*") if path.is_file()}
    assert {f"device-{number}" for number in range(4)} <= used
    assert used & {"device-4", "device-5"}
    # What the killed have left ends with them, and then all devices are free again.
    code, output = run_command([*shared, "-np", "4", "--reset-partition=yes", "true"])
    assert code == 0, output
    assert run_command([*LAUNCHER, "partitions", "remove", "P"]) == (0, "")
    assert run_command([*LAUNCHER, "partitions"]) == (0, "there are no partitions\n")


def test_partitions_of_more_than_a_thousand_devices():
    # The launcher has a descriptor for each, and `select.select` takes none from 1024 on.
    options = ["--vipu-partition=P", "--vipu-server-host=10.3.7.150", "--num-replicas=1100"]
    words = [*LAUNCHER, "-np", "2", *options, "echo", "here"]
    status, output = run_command(["sh", "-c", 'ulimit -n 4000; exec "$@"', "sh", *words])
    assert (status, output.splitlines()[1:]) == (0, ["here", "here"])
    status, output = run_command(["sh", "-c", 'ulimit -n 400; exec "$@"', "sh", *words])
    assert status == 2
    assert "[PD117] the limit of open files is too low for this job" in output
    assert "Traceback" not in output
    assert run_command([*LAUNCHER, "partitions"]) == (0, "there are no partitions\n")


def test_instances_get_their_own_cores():
    code = (
        "import os, popdist; from popdist.poprun.protocol.guard_argv import format_list; "
        "print(popdist.getInstanceIndex(), popdist.getDeviceId(), "
        "format_list(os.sched_getaffinity(0)), os.environ['IPUOF_VIPU_API_PARTITION_ID'])"
    )
    options = ["-np", "2", "--vipu-partition=P", "--vipu-allocation=cores-2"]
    status, output = run_command([*LAUNCHER, *options, sys.executable, "-c", code])
    assert status == 0, output
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    if len(cpus) == os.cpu_count() and half:  # with fewer, this process is bound itself
        lines = sorted(line.split() for line in output.splitlines())
        assert [line[:2] + line[3:] for line in lines] == [["0", "0", "P"], ["1", "1", "P"]]
        assert lines[0][2] != lines[1][2]


@pytest.mark.parametrize(
    "words",
    [  # sections 2.3.1 and 2.3.2 of the guide; those for several hosts are in tests/hosts
        "--vipu-partition=P8 --vipu-cluster=A8 --num-replicas=4 --num-instances=1",
        "--vipu-partition=A8 --vipu-cluster=A8 --num-replicas=8 --num-instances=2",
    ],
)
def test_the_guides_command_lines_run_on_this_machines_devices_with_one_note(pool, words):
    options = ["--numa-aware=yes", "--vipu-server-host=10.3.7.150"]
    options += ["--mpi-global-args=--tag-output", *words.split()]
    code = "import popdist as p; print(p.getNumLocalReplicas(), p.getNumTotalReplicas())"
    program = [sys.executable, "-c", code]
    replicas, instances = int(options[-2][-1]), int(options[-1][-1])
    status, output = run_command([*LAUNCHER, *options, *program])
    assert status == 0, output
    note, *lines = sorted(output.splitlines(), key=lambda line: not line.startswith("poprun: "))
    assert "the V-IPU server 10.3.7.150 is not asked" in note
    assert sorted(lines) == [
        f"[1,{index}]<stdout>:{replicas // instances} {replicas}" for index in range(instances)
    ]
    # A dry run says the same, and leaves nothing either.
    status, output = run_command([*LAUNCHER, *options, "--dry-run=yes", *program])
    assert status == 0, output
    assert note in output.splitlines()
    with pool:
        assert pool.partitions() == {}


def test_offline_mode_leaves_a_server_on_the_network_alone(pool):
    options = ["--vipu-server-host=10.3.7.150", "--vipu-partition=P8"]
    status, output = run_command([*LAUNCHER, *options, "--offline-mode=1", "echo", "hello"])
    assert (status, output) == (0, "hello\n")
    with pool:
        assert pool.partitions() == {}


def test_instances_for_which_mpirun_has_too_few_files_are_refused():
    # mpirun would neither start them nor end.
    for words in (["-np", "300"], ["-np", "300", "--dry-run=yes"]):
        command = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *LAUNCHER, *words, "true"]
        status, output = run_command(command)
        assert status == 2
        assert "[PD117] the limit of open files is too low for this job" in output
        assert "256 open files" in output
        assert "1232 or more, for 300 instances on this machine" in output
    # Where the check lets a job pass, the job runs; its programs have the shell's limit.
    program = 'ulimit -S -n 112; exec "$@"'
    command = ["sh", "-c", program, "sh", *LAUNCHER, "-np", "20", "sh", "-c", "ulimit -n"]
    assert run_command(command) == (0, "112\n" * 20)
