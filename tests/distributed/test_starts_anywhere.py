"""Jobs in places that lack something: ssh, a terminal, processes, room for temporary files."""

import json
import os
import pty
import shutil
import signal
import sys
import time

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
