"""Ends of jobs that are no row of the fault matrix (`tests.distributed.faults`)."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from popdist.poprun.protocol.guard_argv import JOB, Fronts
from popdist.poprun.protocol.own_folder import has_our_form, make_folder, mark, new_name
from tests.distributed.endings import DETACHING, STUBBORN, Job, children
from tests.distributed.jobs import LAUNCHER, ROOT, run_command


@pytest.fixture
def job(mpirun, tmp_path):
    started = []

    def start(*words, **more):
        started.append(Job([f"--mpirun={mpirun}"], tmp_path, *words, **more))
        return started[-1]

    yield start
    for one in started:
        one.clean_up()


@pytest.fixture
def groups(own_group):
    """A function that finds the groups of jobs in what their processes say."""

    def find(told):
        names = {Path(line).parent.name for line in told.splitlines() if line.startswith("0::")}
        return [own_group / name for name in names if has_our_form(name)]

    return find


def test_an_interrupt_during_the_start(job):
    running = job()
    while not children(running.process.pid):
        time.sleep(0.001)
    running.process.send_signal(signal.SIGINT)
    assert running.end()[0] == 130


def test_a_reader_that_goes_away_ends_the_job(job):
    running = job(program=STUBBORN.replace("time.sleep(300)", "while True: print('more')"))
    running.until_ready().process.stdout.close()
    running.process.stdout = None
    assert running.end()[0] == 128 + signal.SIGPIPE


def test_what_an_instance_detached_ends_with_it_and_not_with_the_job(mpirun, tmp_path):
    code = (
        "import os, subprocess, sys, time\n"
        "words, index = sys.argv[1:], int(os.environ['POPDIST_INSTANCE_INDEX'])\n"
        "daemon = [sys.executable, '-c', 'import time; time.sleep(300)', f'{words[0]}-{index}']\n"
        "subprocess.Popen(daemon, start_new_session=True)\n"
        "def alive(which):\n"
        "    listed = subprocess.check_output(['ps', '-wweo', 'args'], text=True).splitlines()\n"
        "    return sum(line.endswith(f'time.sleep(300) {words[0]}-{which}') for line in listed)\n"
        "assert alive(index)\n"
        "until = time.monotonic() + 20\n"
        "def wait(condition):\n"
        "    while not condition():\n"
        "        assert time.monotonic() < until\n"
        "        time.sleep(0.1)\n"
        "if index:\n"
        "    wait(lambda: alive(0))\n"
        "    open(words[1], 'w').close()\n"
        "    wait(lambda: not alive(0))\n"
        "    print('only mine:', alive(0), alive(1))\n"
        "wait(lambda: os.path.exists(words[1]))"
    )
    program = [sys.executable, "-c", code, uuid.uuid4().hex, str(tmp_path / "seen")]
    status, output = run_command([*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", *program])
    assert (status, output) == (0, "only mine: 0 1\n"), output


def test_a_daemon_without_its_environment_ends_with_the_last_program(mpirun):
    mark = f"300.{uuid.uuid4().int}"
    daemon = f"env -i setsid sh -c 'sleep {mark} </dev/null >/dev/null 2>&1 &'"
    code = f"[ $RANK = 1 ] || {{ {daemon}; exit 0; }}; sleep 1"
    job = [*LAUNCHER, f"--mpirun={mpirun}", "--control-groups=no", "-np", "2", "sh", "-c", code]
    status, output = run_command(job)
    assert status == 0, output
    assert run_command(["pgrep", "-fx", f"sleep {mark}"]) == (1, "")


def told_by(processes):
    return "".join(Path(f"/proc/{pid}/cgroup").read_text() for pid in processes)


DAEMON = "env -i setsid sh -c 'sleep {mark} </dev/null >/dev/null 2>&1 &'"


def test_a_daemon_without_its_environment_ends_with_its_program_in_a_group(mpirun, groups):
    mark = f"300.{uuid.uuid4().int}"
    daemon = DAEMON.format(mark=mark)
    code = (
        f"cat /proc/self/cgroup; [ $RANK = 1 ] || {{ {daemon}; exit 0; }}; sleep 3; "
        f"pgrep -fx 'sleep {mark}'"
    )
    status, output = run_command([*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", "sh", "-c", code])
    assert status == 1, output  # pgrep's, as it finds none
    (group,) = groups(output)
    assert not group.exists()
    assert "instance 1 on localhost" in output


def test_a_daemon_without_its_environment_ends_with_a_killed_job_in_a_group(
    mpirun, tmp_path, groups
):
    mark = f"300.{uuid.uuid4().int}"
    program = f"import subprocess\nsubprocess.run({DAEMON.format(mark=mark)!r}, shell=True)\n"
    running = Job([f"--mpirun={mpirun}"], tmp_path, program=program + STUBBORN)
    try:
        running.until_ready()
        guard = running.guard
        (group,) = groups(told_by(running.alive()))
        assert group.exists()
        os.kill(running.process.pid, signal.SIGKILL)
        os.kill(guard, signal.SIGKILL)
        until = time.monotonic() + 10
        while group.exists():
            assert time.monotonic() < until
            time.sleep(0.1)
        assert run_command(["pgrep", "-fx", f"sleep {mark}"]) == (1, "")
    finally:
        running.clean_up()


def test_an_end_with_a_killed_guard_leaves_no_group(mpirun, tmp_path, groups):
    running = Job([f"--mpirun={mpirun}"], tmp_path, program=DETACHING)
    try:
        running.until_ready()
        (group,) = groups(told_by(running.alive()))
        os.kill(running.guard, signal.SIGKILL)
        assert running.end()[0] == 137
        assert not group.exists()
    finally:
        running.clean_up()


@pytest.mark.parametrize("option", ["--allow-daemons=yes", "--host=a,b"])
def test_groups_are_refused_where_they_cannot_help(option):
    job = [*LAUNCHER, "--control-groups=yes", "--preflight=no", option, "-np", "2", "true"]
    status, output = run_command(job)
    assert status == 2
    assert "[PD101] --control-groups is for jobs on one machine" in output


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ([], 0, ""),
        (["--control-groups=yes"], 2, "[PD126] no control group can be made for the job"),
    ],
)
def test_groups_that_cannot_be_made_are_an_error_where_they_are_asked_for(options, status, said):
    words = [*LAUNCHER, *options, "-np", "2", "true"]
    script = 'mount -t tmpfs -o ro tmpfs /sys/fs/cgroup && exec "$@"'
    ended, output = run_command(["unshare", "--mount", "sh", "-c", script, "sh", *words])
    assert ended == status, output
    assert output == "" or (said and said in output)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(("options", "inside"), [([], True), (["--control-groups=no"], False)])
def test_instances_have_groups_of_their_own_where_they_can(options, inside):
    code = "print(open('/proc/self/cgroup').read())"
    status, output = run_command([*LAUNCHER, *options, "-np", "2", sys.executable, "-c", code])
    places = {line.partition("0::")[2] for line in output.splitlines() if "0::" in line}
    assert (status, len(places)) == (0, 2 if inside else 1), output
    assert all(("/poprun-" in place) is inside for place in places)


def test_a_daemon_may_stay_if_the_user_says_so(mpirun, tmp_path):
    running = Job([f"--mpirun={mpirun}", "--allow-daemons=yes"], tmp_path, "0", program=DETACHING)
    try:
        running.until_ready().process.wait(timeout=30)
        assert len(running.alive()) == 10  # five of each instance
    finally:
        running.clean_up()


def test_processes_of_a_spared_one_are_left_alone():
    code = "import subprocess\nwhile True: assert subprocess.call(['true']) == 0"
    sweep = (
        "import os, subprocess, sys, time\n"
        "from popdist.poprun.protocol.processes import adopt_orphans, kill_descendants\n"
        "adopt_orphans()\n"
        f"spared = subprocess.Popen([sys.executable, '-c', {code!r}])\n"
        "other = subprocess.Popen(['sleep', '300'])\n"
        "for _ in range(200): kill_descendants(0.0, lambda child: child != spared.pid)\n"
        "assert other.wait() == -9\n"
        "assert spared.poll() is None\n"
        "spared.kill()"
    )
    status, output = run_command([sys.executable, "-c", sweep])
    assert (status, output) == (0, "")


def test_orphans_that_another_instance_makes_meanwhile_are_left_alone():
    make = "for i in $(seq 100); do (sleep 300 & echo $!); done"
    sweep = (
        "import os, subprocess\n"
        "from popdist.poprun.protocol.processes import (\n"
        "    adopt_orphans, kill_descendants, process_start, send, variables_of)\n"
        "adopt_orphans()\n"
        "ours = subprocess.Popen(['sleep', '300'], env={'RANK': '0', **os.environ})\n"
        f"maker = subprocess.Popen(['sh', '-c', {make!r}], stdout=subprocess.PIPE,\n"
        "    env={'RANK': '1', **os.environ})\n"
        "is_meant = lambda child: 'RANK=0' in variables_of(child)\n"
        "while maker.poll() is None: kill_descendants(0.0, is_meant)\n"
        "orphans = [int(word) for word in os.read(maker.stdout.fileno(), 9999).split()]\n"
        "print(ours.wait(), len(orphans), sum(bool(process_start(pid)) for pid in orphans))\n"
        "for pid in orphans: send(pid, 9)"
    )
    status, output = run_command([sys.executable, "-c", sweep])
    assert (status, output) == (0, "-9 100 100\n")


def test_a_front_whose_guard_was_killed_before_it_began_ends(tmp_path):
    folder = tmp_path / new_name()
    fd = make_folder(str(folder))
    mark(fd, folder.name)
    os.close(fd)
    Fronts(str(folder), 1).close()
    left = subprocess.Popen(["sleep", "300"], env={JOB: folder.name})
    env = {"POPRUN_FRONT": str(folder), "OMPI_COMM_WORLD_RANK": "0"}
    front = ROOT / "popdist/poprun/guard/front.sh"
    mpirun = ["sh", "-c", 'sh "$0" "$1"; exit $?']  # is ended too
    code, output = run_command([*mpirun, front, sys.executable], env=env, timeout=20)
    assert (code, output) == (137, "")
    # What poprun and the guard cannot do any more is done.
    assert left.wait(timeout=20) == -signal.SIGKILL
    until = time.monotonic() + 20
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not folder.exists()


GUARD_ALONE = """
import os, subprocess, sys
from popdist.poprun.guard.host import guard_host
from popdist.poprun.protocol.guard_argv import Fronts, plain_words
folder, mark = sys.argv[1:]
fronts = Fronts(folder, 1)
settings = "index=0 world=1 show=1 neighbours=1 local=0 numa=0 grace=5".split()
wait = [sys.executable, "-c", "import time; time.sleep(300)"]
mpirun = subprocess.Popen(wait)
front = subprocess.Popen([*wait, *plain_words(settings, ["sleep", mark])])
os.write(fronts.calls, b"%d START 0\\n" % front.pid)
reader, reports = os.pipe()
os.close(reader)  # poprun has ended
print("ready", flush=True)
guard_host({"grace": "5"}, mpirun.pid, fronts, reports)
os._exit(7)
"""


def test_a_program_that_is_to_start_as_poprun_ends_does_not(tmp_path):
    folder = tmp_path / new_name()
    fd = make_folder(str(folder))
    mark(fd, folder.name)
    os.close(fd)
    name = f"300.{uuid.uuid4().int}"
    words = [sys.executable, "-c", GUARD_ALONE, str(folder), name]
    assert run_command(words, timeout=20) == (7, "ready\n")
    assert run_command(["pgrep", "-fx", f"sleep {name}"]) == (1, "")
    assert run_command(["pgrep", "-f", name]) == (1, "")
