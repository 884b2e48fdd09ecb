"""Jobs whose results lie beside a user's own files, in the folder for temporary files."""

import os
import sys

import pytest

from tests.distributed.jobs import LAUNCHER, run_command

PROGRAM = (
    "import os, pathlib, horovod.torch as hvd, torch; hvd.init();"
    "hvd.allreduce(torch.ones(2), name='x');"
    "pathlib.Path('poprun-' + str(hvd.rank())).mkdir(exist_ok=True)"
)


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_a_job_and_its_user_have_written_outlives_later_jobs(tmp_path):
    options = [
        f"--log-dir={tmp_path}/poprun-logs",
        f"--json={tmp_path}/poprun-result.json",
        f"--timeline={tmp_path}/poprun-0123456789abcdef",
        f"--output-filename={tmp_path}/poprun-out",
    ]
    (tmp_path / "poprun-results").mkdir()
    (tmp_path / "poprun-results" / "weights.pt").write_text("three days of training")
    (tmp_path / "poprun-fedcba9876543210").mkdir()
    (tmp_path / "poprun-link").symlink_to("poprun-results")
    env = {"TMPDIR": str(tmp_path)}
    job = [*LAUNCHER, "-np", "2", *options, sys.executable, "-c", PROGRAM]
    code, output = run_command(job, env=env, cwd=tmp_path)
    assert code == 0, output
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    before = files(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"poprun-logs", "poprun-result.json", "poprun-0123456789abcdef", "poprun-0"} <= names
    for _ in range(2):
        assert run_command([*LAUNCHER, "-np", "2", "true"], env=env, cwd=tmp_path) == (0, "")
    assert files(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("option", ["--json", "--timeline"])
def test_a_refused_launch_leaves_the_files_of_its_results(tmp_path, option):
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "link.json").symlink_to("missing.json")
    (tmp_path / "old.json.parts").mkdir()
    (tmp_path / "old.json.parts" / "mine").write_text("mine")
    before = {path.name for path in tmp_path.iterdir()}
    for name in ("old.json", "link.json"):
        command = [*LAUNCHER, f"{option}={name}", "--dry-run=yes", "-np", "2", "true"]
        code, _ = run_command(command, cwd=tmp_path)
        assert code == 0
    assert {path.name for path in tmp_path.iterdir()} == before
    assert files(tmp_path) == {"old.json": b"old", "old.json.parts/mine": b"mine"}
