"""Command lines as people type them: closed streams, odd words, other launchers' habits."""

import json
import subprocess
import sys

from tests.distributed.jobs import LAUNCHER, ROOT, run_command

POPRUN = " ".join(LAUNCHER)


def shell(line, **named):
    return run_command(["bash", "-c", line], **named)


def test_words_that_are_not_utf8_are_passed_on_and_written_escaped(tmp_path):
    line = (
        f"{POPRUN} --json={tmp_path}/result --log-dir={tmp_path}/$'logs\\x81' --vipu-partition=P "
        "--offline-mode=no printf %s $'\\x80' | od -An -tx1"
    )
    status, output = shell(line, env={"POPDIST_STATE_DIR": str(tmp_path / "state")})
    assert (status, output.split()) == (0, ["80"])
    result = json.loads((tmp_path / "result").read_text(encoding="utf-8"))
    assert result["job"]["program"][-1] == "\udc80"
    assert result["success"] is True
    # A dry run shows a command that a shell reads back.
    status, output = shell(f"{POPRUN} --dry-run=yes printf $'a\\x80\\'b'")
    assert status == 0
    assert output.splitlines()[-1].endswith(r"printf $'a\200\047b'")


def test_a_job_runs_with_closed_streams(tmp_path):
    kept = tmp_path / "kept"
    line = f"{POPRUN} -np 2 {sys.executable} -c 'import sys; sys.stdin.read(); print(1)'"
    for closed in ("<&-", "2>&-", "<&- 2>&-"):
        assert shell(f"{line} {closed}") == (0, "1\n1\n"), closed
    status, output = shell(f"{line} >&- 2>{kept}")
    assert (status, output, kept.read_text()) == (0, "", "")
    status, output = shell(f"{POPRUN} --help >/dev/full")
    assert status == 2
    assert "[PD110] standard output cannot be written" in output


def test_scripts_without_an_interpreter_run_as_in_shells(tmp_path):
    script = tmp_path / "my-script"
    script.write_text('echo "$1 $POPDIST_INSTANCE_INDEX"\nexit 3\n')
    script.chmod(0o700)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\0\1\2\3")
    binary.chmod(0o700)
    status, output = run_command([*LAUNCHER, script, "it's"])
    assert status == 3
    assert output.startswith("it's 0\n")
    status, output = run_command([*LAUNCHER, "my-script", "found"], cwd=tmp_path)
    assert (status, output.splitlines()[0]) == (3, "found 0")
    status, output = run_command([*LAUNCHER, binary])
    assert status == 127
    assert "Exec format error" in output


def test_a_module_runs_as_with_python(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "import sys, popdist\nprint(__name__, popdist.getInstanceIndex(), sys.argv[1:])\n"
    )
    env = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    status, output = run_command(
        [*LAUNCHER, "-np", "2", "-m", "package.train", "--json", "x"], env=env
    )
    assert status == 0, output
    assert sorted(output.splitlines()) == [f"__main__ {i} ['--json', 'x']" for i in range(2)]


def test_a_job_inside_a_job_is_refused_with_a_hint():
    status, output = run_command([*LAUNCHER, *LAUNCHER, "-np", "2", "true"])
    assert status == 2
    assert output.startswith("poprun: [PD116] poprun was started inside a job")
    assert "recursive" not in output


def test_a_relative_folder_for_temporary_files_is_taken(tmp_path, mpirun):
    (tmp_path / "here").mkdir()
    words = [*LAUNCHER, f"--mpirun={mpirun}", "-np", "2", "echo", "hello"]
    assert run_command(words, env={"TMPDIR": "here"}, cwd=tmp_path) == (0, "hello\nhello\n")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_dry_run_gives_the_verdict_of_the_run(tmp_path):
    file = tmp_path / "file"
    file.touch()
    state = {"POPDIST_STATE_DIR": str(tmp_path / "state")}
    for options, code in (
        (["--forward-signals=KILL"], "PD100"),
        (["--json=/no/such/folder/x"], "PD110"),
        ([f"--log-dir={file}/x"], "PD110"),
        (["--vipu-partition=P", "--vipu-cluster=A8"], "PD130"),
    ):
        answers = [
            run_command([*LAUNCHER, *options, *dry, "true"], env=state)
            for dry in ([], ["--dry-run=yes"])
        ]
        for status, output in answers:
            assert status == 2, (options, output)
            assert f"[{code}]" in output, (options, output)
    env = {**state, "TMPDIR": str(file)}
    status, output = run_command([*LAUNCHER, "--dry-run=yes", "true"], env=env)
    assert status == 2
    assert "[PD109]" in output
    log = tmp_path / "logs"
    status, _ = run_command([*LAUNCHER, f"--log-dir={log}", "--dry-run=yes", "true"])
    assert status == 0
    assert not log.exists()


def test_a_closed_reader_of_the_answer_is_no_mistake():
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {POPRUN} --help | head -1"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout == "Usage: poprun [options] program [program args]\n"
    assert done.stderr == ""
