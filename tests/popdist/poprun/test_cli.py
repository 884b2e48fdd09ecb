"""The command: help, version, mistakes, dry runs. Launches are in `tests/distributed`."""

import shlex

import pytest

import popdist
from popdist.poprun.cli import main
from popdist.poprun.command.help import options_table
from popdist.poprun.command.options import OPTIONS


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
