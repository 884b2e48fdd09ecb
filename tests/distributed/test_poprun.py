"""Real launches: output, environment, exit codes. Failures and signals are in `test_endings`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, run_command

PYTHON = [sys.executable, "-c"]


@pytest.fixture
def poprun(mpirun):
    """Runs poprun over an mpirun of each generation; gives exit code and output."""

    def run(*words, **more):
        return run_command([*LAUNCHER, f"--mpirun={mpirun}", *words], **more)

    return run


def test_the_guides_validation_command(poprun):
    code, output = poprun(
        "--num-instances", "2", "--num-replicas", "2", "--offline-mode=1", "echo", "Hello world!"
    )
    assert (code, output) == (0, "Hello world!\nHello world!\n")


def test_instances_know_their_place(poprun):
    code = (
        "import popdist as p; print(p.topology().instance_index, p.getReplicaIndexOffset(), "
        "p.getNumLocalReplicas(), p.getNumTotalReplicas(), p.getNumIpusPerReplica(), "
        "p.isUniformReplicasPerInstance(), p.getLocalInstanceIndex(), p.getDeviceId())"
    )
    status, output = poprun("-np", "2", "--num-replicas=5", "--ipus-per-replica=2", *PYTHON, code)
    assert status == 0, output
    assert sorted(output.splitlines()) == ["0 0 3 5 2 False 0 0", "1 3 2 5 2 False 1 6"]


def test_more_instances_than_cores(poprun):
    status, output = poprun("-np", "8", "echo", "here")
    assert (status, output) == (0, "here\n" * 8)


def test_tags_name_instance_and_stream(poprun):
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    for request in ("--tag-output=yes", "--mpi-global-args=--tag-output"):
        status, output = poprun("-np", "2", request, *PYTHON, code)
        assert status == 0, output
        assert sorted(output.splitlines()) == [
            "[1,0]<stderr>:err",
            "[1,0]<stdout>:out",
            "[1,1]<stderr>:err",
            "[1,1]<stdout>:out",
        ]


def test_lines_stay_whole_when_instances_write_at_once(poprun):
    # Long lines in several writes each, from all instances at the same time, with letters that
    # take several bytes.
    code = (
        "import os, sys\n"
        "letter = '\\u6f22\\u00e9xy'[int(os.environ['POPDIST_INSTANCE_INDEX'])]\n"
        "for size in range(0, 9000, 300):\n"
        "    sys.stdout.write(letter * size); sys.stdout.flush(); print('|')"
    )
    status, output = poprun("-np", "4", *PYTHON, code)
    assert status == 0, output[-2000:]
    lines = output.splitlines()
    expected = [letter * size + "|" for letter in "漢éxy" for size in range(0, 9000, 300)]
    assert sorted(lines) == sorted(expected)


def test_only_one_instance_is_heard(poprun):
    code = "import os; print(os.environ['POPDIST_INSTANCE_INDEX'])"
    status, output = poprun("-np", "3", "--only-output-from-instance=1", *PYTHON, code)
    assert (status, output) == (0, "1\n")


def test_output_files_hold_each_instances_streams(poprun, tmp_path):
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    for number, request in enumerate(
        ("--output-filename={}", "--mpi-global-args=--output-filename {}")
    ):
        folder = tmp_path / str(number)
        status, output = poprun("-np", "2", request.format(folder), *PYTHON, code)
        assert status == 0, output
        for index in (0, 1):
            assert (folder / f"1/rank.{index}/stdout").read_text() == "out\n"
            assert (folder / f"1/rank.{index}/stderr").read_text() == "err\n"


def test_variables_are_forwarded(poprun):
    code = "import os; print(*(os.environ.get(n) for n in 'ABCD'))"
    status, output = poprun(
        "-np", "2", "-x", "A", "-x", "B=x y=$HOME;'", "--mpi-local-args=-x C=all",
        "--instance-mpi-local-args=1:-x D=one", *PYTHON, code, env={"A": "1"},
    )  # fmt: skip
    assert status == 0, output
    assert sorted(output.splitlines()) == ["1 x y=$HOME;' all None", "1 x y=$HOME;' all one"]


@pytest.mark.parametrize("value", ["--num-replicas=3", "", "a b", "$(id)", "'\"", ":", "-x", "é"])
def test_the_programs_arguments_arrive_as_they_are(poprun, value):
    status, output = poprun(*PYTHON, "import sys; print(ascii(sys.argv[1:]))", value, ":")
    assert (status, output) == (0, f"{[value, ':']!a}\n")


def test_threads_are_shared_among_neighbours_unless_the_user_decides(poprun):
    code = "import os; print(os.environ.get('OMP_NUM_THREADS'))"
    many = "import os; print(len(os.sched_getaffinity(0)))"
    _, cores = poprun(*PYTHON, many)
    status, output = poprun("-np", "2", *PYTHON, code, env={"OMP_NUM_THREADS": None})
    assert (status, output) == (0, f"{max(1, int(cores) // 2)}\n" * 2)
    assert poprun("-np", "2", *PYTHON, code, env={"OMP_NUM_THREADS": "7"}) == (0, "7\n7\n")


def test_standard_input_goes_to_instance_0(mpirun, tmp_path):
    # One line only: Open MPI 5 passes on what is typed, but not the end of the input.
    source, program = tmp_path / "input", tmp_path / "program"
    source.write_text("from the keyboard\n")
    program.write_text("#!/bin/sh\nread line; echo $POPDIST_INSTANCE_INDEX $line\n")
    program.chmod(0o755)
    words = " ".join([*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", str(program)])
    status, output = run_command(["sh", "-c", f"{words} < {source}"], timeout=60)
    assert status == 0, output
    assert sorted(output.splitlines()) == ["0 from the keyboard", "1"]


def test_the_programs_terminal_has_a_size(poprun):
    # A terminal of 0 columns, which is what mpirun gives, hides progress bars.
    code = "import os; print(*os.get_terminal_size(1))"
    assert poprun(*PYTHON, code) == (0, "80 24\n")


def test_a_prompt_without_a_line_end_is_shown_before_the_program_goes_on(mpirun, tmp_path):
    # The program waits for a file that only somebody who has seen its prompt would make.
    flag = tmp_path / "seen"
    code = (
        "import os, sys, time\nprint('ready? ', end='', flush=True)\n"
        f"while not os.path.exists({str(flag)!r}): time.sleep(0.02)\nprint('yes')"
    )
    with subprocess.Popen(
        [*LAUNCHER, f"--mpirun={mpirun}", *PYTHON, code], stdout=subprocess.PIPE
    ) as process:
        seen = process.stdout.read(7)
        flag.touch()
        rest = process.stdout.read()
    assert (seen, rest, process.returncode) == (b"ready? ", b"yes\n", 0)


def test_the_topology_table_comes_before_the_output(poprun):
    status, output = poprun("-np", "2", "--num-replicas=4", "--print-topology=yes", "echo", "x")
    assert status == 0
    assert "|      poprun topology      |" in output
    assert output.endswith("x\nx\n")


def test_verbose_messages_have_the_published_form(poprun):
    status, output = poprun("-vv", "echo", "x")
    assert status == 0
    kinds = [line for line in output.splitlines() if " POPRUN [" in line]
    assert any("POPRUN [I] Running command: '" in line for line in kinds)
    assert any("POPRUN [I] Waiting for mpirun (PID" in line for line in kinds)
    assert any("terminated with exit code 0" in line for line in kinds)
    assert any("POPRUN [D] instance 0 started" in line for line in kinds)


def test_a_program_of_the_working_directory_needs_no_prefix(poprun, tmp_path):
    script = tmp_path / "hello.sh"
    script.write_text("#!/bin/sh\necho here\n")
    script.chmod(0o755)
    assert poprun("hello.sh", cwd=tmp_path) == (0, "here\n")


@pytest.mark.parametrize("code", [1, 3, 77, 255])
def test_the_exit_code_is_the_programs(poprun, code):
    status, output = poprun("-np", "2", *PYTHON, f"raise SystemExit({code})")
    assert status == code
    assert f"ended with exit code {code}" in output


def test_a_failing_instance_is_shown_although_it_was_silenced(poprun):
    code = (
        "import os, time\n"
        "if os.environ['POPDIST_INSTANCE_INDEX'] == '1': raise ValueError('the reason')\n"
        "time.sleep(300)"  # is ended: the command has less time
    )
    status, output = poprun("-np", "2", "--only-output-from-instance=0", *PYTHON, code)
    assert status == 1
    assert "instance 1 on localhost" in output
    assert "ValueError: the reason" in output


def test_a_program_that_the_kernel_cannot_start(poprun, tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    status, output = poprun("-np", "2", broken)
    assert status == 127
    assert "cannot start" in output
    assert "Traceback" not in output


def test_what_mpirun_says_about_a_good_job_is_shown(poprun, mpirun):
    # Each generation has its own way of being talkative on standard error.
    generation_5 = Path(mpirun).with_name("prterun").exists()
    words, said = (
        ("--report-bindings", "Rank 1 is not bound")
        if generation_5
        else ("--mca plm_base_verbose 5", "complete_setup on job")
    )
    status, output = poprun(f"--mpi-global-args={words}", "-np", "2", "echo", "x")
    assert status == 0
    assert said in output
    assert output.count("x\n") >= 2


def test_mpiruns_abort_text_gives_way_to_the_summary(poprun):
    program = (*PYTHON, "raise SystemExit(3)")
    assert "Per user-direction" not in poprun("-np", "2", *program)[1]
    assert "exit code 3" in poprun("-np", "2", *program)[1]


def test_mpiruns_own_complaint_is_passed_on(poprun):
    status, output = poprun("--mpi-global-args=--no-such-option", "true")
    assert status not in (0, 2)
    assert "no-such-option" in output
