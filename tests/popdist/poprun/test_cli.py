"""The command: help, version, mistakes, dry runs. Launches are in `tests/distributed`."""

import json
import os
import shlex
import subprocess
import sys

import pytest

import popdist
from popdist._version import __version__
from popdist.poprun.cli import main
from popdist.poprun.options.help import options_table
from popdist.poprun.options.table import OPTIONS


def test_help_names_every_option_once_with_its_group(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for option in OPTIONS:
        assert text.count(f"--{option.name} ") + text.count(f"--{option.name}\n") >= 1
        assert f"{option.group}:" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"poprun {popdist.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [[], ["--nope"], ["--num-replicas=0", "true"], ["--host=;", "true"], ["no-such-program"]],
)
def test_mistakes_exit_with_2_and_one_message(words, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("poprun: [PD1")
    assert "Traceback" not in captured.err


def test_a_dry_run_shows_table_and_command_and_starts_nothing(capsys, tmp_path):
    witness = tmp_path / "witness"
    assert main(["--dry-run=1", "-np", "2", "touch", str(witness)]) == 0
    shown, _, command = capsys.readouterr().out.rstrip().rpartition("\n")
    assert "poprun topology" in shown
    assert "HOROVOD_CYCLE_TIME=0.1 \\\n" in shown + "\n"
    words = shlex.split(command)
    assert words[0].endswith("mpirun")
    assert words.count("-np") == 2
    assert not witness.exists()


def test_the_table_of_options_has_a_row_for_each():
    rows = options_table().splitlines()
    assert sum(row.startswith("| `") for row in rows) == len(OPTIONS)


def test_a_reader_that_has_gone_away_is_no_reason_to_fail():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "popdist.poprun", "--help"],
        stdout=writer, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_words_that_are_not_utf8_can_be_shown():
    done = subprocess.run(
        [sys.executable, "-m", "popdist.poprun", "--dry-run=1", "true", b"\xff", "é"],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"$'\377'" in done.stdout  # as a shell reads it


@pytest.mark.parametrize("form", ["text", "full-text", "full-json"])
def test_the_version_in_its_forms(capsys, form):
    assert main(["--version", f"--version-format={form}"]) == 0
    shown = capsys.readouterr().out
    if form == "text":
        assert shown == f"poprun {__version__}\n"
    elif form == "full-text":
        assert shown.startswith(f"poprun {__version__}\npython {sys.version_info[0]}.")
    else:
        assert json.loads(shown)["popdist"] == __version__


def test_a_configuration_is_written_and_used(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("POPRUN_NUM_REPLICAS", "4")
    path = tmp_path / "job.toml"
    assert main(["-np", "2", "--export-config", str(path)]) == 0
    assert path.read_text() == "num-instances = 2\nnum-replicas = 4\n"
    monkeypatch.delenv("POPRUN_NUM_REPLICAS")
    assert main([f"--config={path}", "--dry-run=yes", "true"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"# --num-replicas=4 from {path}" in shown
    assert "POPDIST_NUM_TOTAL_REPLICAS=4" in shown
    assert main([f"--export-config={path}", "true"]) == 2
    assert "PD106" in capsys.readouterr().err


def test_a_manifest_is_printed_and_nothing_is_started(capsys, tmp_path):
    witness = tmp_path / "witness"
    words = ["--emit=mpijob", "--emit-image=i", "touch", str(witness)]
    assert main(words) == 0
    assert 'kind: "MPIJob"' in capsys.readouterr().out
    assert not witness.exists()


def test_secrets_are_in_no_message(capsys):
    assert main(["-x", "1_TOKEN=s3cret", "true"]) == 2
    assert main(["--dry-run=1", "-x", "A_TOKEN=s3cret", "true", "--password=s3cret"]) == 0
    captured = capsys.readouterr()
    assert "s3cret" not in captured.out + captured.err
    assert "<hidden>" in captured.out
