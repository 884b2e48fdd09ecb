"""Jobs in places that lack something: ssh, a terminal, processes, room for temporary files."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
HIDE_SSH = 'mount --bind /dev/null "$(readlink -f "$(command -v ssh)")"; exec "$@"'


def without_ssh(*command, **more):
    if shutil.which("ssh") is not None:
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", HIDE_SSH, "-", *command]
    return run_command(command, **more)


@needs_root
def test_one_machine_needs_no_ssh(mpirun):
    job = [*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", "printenv", "RANK", "OMPI_MCA_plm"]
    code, output = without_ssh(*job)
    # Not set for programs, which may start an mpirun of their own.
    assert (code, sorted(output.splitlines()[:2])) == (1, ["0", "1"])
    assert "isolated" not in output
    job = [*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", "echo", "hi"]
    assert without_ssh(*job) == (0, "hi\nhi\n")


@needs_root
def test_popdist_run_and_the_doctor_need_no_ssh():
    call = "import popdist; print(popdist.run(len, args=('ab',), num_instances=2))"
    assert without_ssh(sys.executable, "-c", call) == (0, "[2, 2]\n")
    code, output = without_ssh(*LAUNCHER, "doctor", "--no-job")
    assert "there is no ssh client, which only jobs on several hosts need" in output
    assert code == 0


def test_several_hosts_without_ssh_are_refused_with_the_reason(tmp_path):
    job = [*LAUNCHER, "-np", "2", "--host=203.0.113.1,203.0.113.2", "true"]
    code, output = run_command(job, env={"PATH": str(tmp_path)})
    assert code == 2
    assert "ssh cannot be started on this machine (No such file or directory)" in output
    assert "hint:     install an ssh client here (apt install openssh-client)" in output


WORK = (
    "import os, pathlib, sys, time; rank = os.environ['RANK'];"
    "pathlib.Path('began' + rank).touch();"
    "print('a line', flush=True); time.sleep(4);"
    "pathlib.Path('done' + rank).touch()"
)


def on_a_terminal_that_goes(folder, *options, before="exec"):
    """Runs a job whose terminal is closed; the exit code, the result, and how many came through.

    Args:
        folder: The working directory.
        options: Options of poprun.
        before: Shell words before the command.
    """
    words = [*LAUNCHER, "-np", "2", "--json=r.json", *options, sys.executable, "-c", WORK]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(ROOT)
        os.execvp("sh", ["sh", "-c", f'{before} "$@"', "sh", *words])  # noqa: S606
    until = time.monotonic() + 60
    while not ((folder / "began0").exists() and (folder / "began1").exists()):
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(2.5)  # until the status line is due
    os.close(terminal)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    result = json.loads((folder / "r.json").read_text())
    return os.waitstatus_to_exitcode(status), result, len(list(folder.glob("done*")))


@pytest.mark.parametrize("options", [(), ("--status=never",), ("--tag-output=yes",)])
def test_a_terminal_that_goes_ends_the_job_with_129(tmp_path, options):
    code, result, through = on_a_terminal_that_goes(tmp_path, *options)
    assert (code, result["exit_code"], through) == (129, 129, 0)


@pytest.mark.parametrize(
    "before",
    [
        "trap '' HUP; exec",  # what nohup and disown do
        "exec nohup",
        "exec nohup setsid --wait",
        "exec 1>log; trap '' HUP; exec",
        "exec 1>log 2>&1 </dev/null; trap '' HUP; exec",
    ],
)
def test_a_job_that_ignores_hangups_goes_on_without_its_terminal(tmp_path, before):
    code, result, through = on_a_terminal_that_goes(tmp_path, before=before)
    assert (code, result["exit_code"], through) == (0, 0, 2)


def test_lines_with_tags_are_whole_with_one_visible_instance():
    program = (
        "import sys, time\nfor k in range(2):\n sys.stdout.write(f'<start {k} ');"
        " sys.stdout.flush(); time.sleep(0.4);"
        " sys.stdout.write(f'end {k}>\\n'); sys.stdout.flush()"
    )
    words = ("--tag-output=yes", sys.executable, "-c", program)
    lines = "[1,0]<stdout>:<start 0 end 0>\n[1,0]<stdout>:<start 1 end 1>\n"
    assert run_command([*LAUNCHER, "-np", "1", *words]) == (0, lines)
    only = "--only-output-from-instance=0"
    assert run_command([*LAUNCHER, "-np", "2", only, *words]) == (0, lines)


class Group:
    """A control group of version 1 with a limit, for commands that enter it."""

    def __init__(self, controller, **limits):
        self.folder = Path("/sys/fs/cgroup", controller, f"popdist-test-{os.getpid()}")
        try:
            self.folder.mkdir()
            for name, limit in limits.items():
                (self.folder / name.replace("__", ".")).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no control group of {controller} can be made here: {error}")

    def __enter__(self):
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs; exec "$@"', "sh"]

    def __exit__(self, *_):
        until = time.monotonic() + 10
        while (self.folder / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.1)
        self.folder.rmdir()


@pytest.mark.parametrize("limit", [4, 6, 7, 9, 11])
def test_a_limit_of_processes_is_one_message(mpirun, limit):
    with Group("pids", pids__max=limit) as inside:
        job = [*inside, *LAUNCHER, f"--mpirun={mpirun}", "-np", "4", "sleep", "2"]
        code, output = run_command(job)
    assert code == 2, output
    # Whether an instance ends in time is chance where mpirun has no process left to ask it.
    first, *rest = [line for line in output.splitlines() if "when asked to" not in line]
    assert first == "poprun: [PD118] the limit of processes is too low for this job"
    assert all(line.startswith("poprun: ") for line in rest)
    assert f"seen:     '{limit} in " in rest[0]
    assert len(rest) == 4


def test_a_child_that_ran_out_of_memory_is_named():
    program = (
        "import os, subprocess, sys; rank = os.environ['RANK']\n"
        "if rank == '0': import time; time.sleep(30)\n"
        "hog = [sys.executable, '-c', 'x = bytearray(700 << 20); x[::4096] = x[::4096]']\n"
        "subprocess.run(hog, check=True)"
    )
    with Group("memory", memory__limit_in_bytes="400M") as inside:
        code, output = run_command([*inside, *LAUNCHER, "-np", "2", sys.executable, "-c", program])
    assert code == 1, output
    said = "out of memory (while it ran, the kernel killed a process of its control group, whose"
    assert f"ended with exit code 1: {said} limit is 400 MiB)" in output


def test_a_working_directory_that_is_gone_is_one_message(tmp_path):
    script = f'mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; exec "$@"'
    for option in ("-np=2", "--dry-run=yes"):
        code, output = run_command(["sh", "-c", script, "sh", *LAUNCHER, option, "true"])
        assert code == 2
        assert output.startswith("poprun: [PD119] the working directory cannot be used: No such")
        assert len(output.splitlines()) == 4


@needs_root
@pytest.mark.parametrize("options", ["size=4k", "nr_inodes=2", "nr_inodes=9", "nr_inodes=30", "ro"])
def test_temporary_files_without_room_are_one_message(tmp_path, options, mpirun):
    script = (
        f'mount -t tmpfs -o {options} none {tmp_path}; "$@"; code=$?; ls -A {tmp_path}; exit $code'
    )
    job = [*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", "true"]
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", *job]
    code, output = run_command(command, env={"TMPDIR": str(tmp_path)})
    assert code == 2, output
    why = "Read-only file system" if options == "ro" else "No space left on device"
    assert output.startswith(f"poprun: [PD109] no private folder can be made for the job: {why}\n")
    assert len(output.splitlines()) == 4  # and nothing is left there


@pytest.mark.parametrize(("name", "expected"), [("TERM", 143), ("HUP", 129), ("KILL", 137)])
def test_a_signal_to_what_mpirun_has_started_is_one_message(tmp_path, mpirun, name, expected):
    program = (
        "import os, signal, time; from pathlib import Path\n"
        "rank = os.environ['RANK']; Path(rank).touch()\n"
        "while not all(Path(x).exists() for x in '01'): time.sleep(0.02)\n"
        "time.sleep(0.3)\n"
        "def parent(pid):\n"
        "    return int(Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1])\n"
        "def words(pid): return Path(f'/proc/{pid}/cmdline').read_bytes()\n"
        "pids = [int(p.name) for p in Path('/proc').iterdir() if p.name.isdecimal()]\n"
        "top = parent(os.getppid())\n"
        "for pid in pids if rank == '0' else ():\n"
        "    try:\n"
        "        if b'front.sh' in words(pid) and parent(parent(pid)) == top:\n"
        f"            os.kill(pid, signal.SIG{name}); break\n"
        "    except OSError: pass\n"
        "time.sleep(20)"
    )
    job = [*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", sys.executable, "-c", program]
    code, output = run_command(job, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert code == expected, output
    said = (
        "lost the proxy of its guard, which was killed"
        if name == "KILL"
        else f"(SIG{name}) after a signal that asked it to end, which poprun did not send"
    )
    assert said in output
    assert all(line.startswith("poprun: ") for line in output.splitlines())


@pytest.mark.parametrize("pause", [0.05, 0.2, 0.4, 0.6])
@pytest.mark.parametrize("how", ["SIGTERM", "exit"])
def test_poprun_killed_in_the_last_second_of_a_job_leaves_nothing(tmp_path, how, pause):
    script = "import os, sys, time; time.sleep(1.2); os.environ['RANK'] == '0' and sys.exit(3)"
    script = "import time; time.sleep(60)" if how == "SIGTERM" else f"{script}\ntime.sleep(60)"
    process = subprocess.Popen(
        [*LAUNCHER, "-np", "2", sys.executable, "-S", "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    time.sleep(1.5)
    if how == "SIGTERM":
        process.terminate()
    time.sleep(pause)
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())
