"""Completion in a real bash and a real zsh."""

import os
import pty
import shutil
import subprocess
import sys
import time

import pytest

from popdist.poprun.options.completion import completion_script
from popdist.poprun.options.table import OPTIONS

ASK_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_poprun
printf '%s\\n' "${COMPREPLY[@]}"
"""
# A key that completes the line so far and writes down what has become of it.
ZSH_SETUP = """
PS1='' ; zmodload zsh/zle ; autoload -Uz compinit ; compinit -u -D ; source {script}
zstyle ':completion:*' list-prompt '' ; setopt no_list_beep no_always_last_prompt
answer() {{ zle complete-word ; print -r -- "$BUFFER" >> {answers} ; BUFFER= ; zle redisplay }}
zle -N answer ; bindkey '^T' answer ; touch {ready}
"""


@pytest.fixture
def bash(tmp_path):
    script = tmp_path / "completion"
    script.write_text(completion_script("bash"))

    def complete(*words, cwd=tmp_path):
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK_BASH, "bash", script, "poprun", *words],
            capture_output=True, text=True, check=True, cwd=cwd,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1]

    return complete


def test_bash_offers_every_option(bash):
    assert set(bash("--")) >= {f"--{option.name}" for option in OPTIONS}
    assert bash("--num-i") == ["--num-instances", "--num-ilds"]
    assert bash("--verbose", "--print-t") == ["--print-topology"]


def test_bash_offers_values(bash):
    assert bash("--color", "a") == ["auto", "always"]
    # bash cuts words at the sign before it asks.
    assert bash("--color", "=", "a") == ["auto", "always"]
    assert bash("--color", "=") == ["auto", "always", "never"]
    assert bash("--num-instances", "=", "2", "--numa-aware", "=", "y") == ["yes"]
    assert bash("-np", "2", "--emit", "") == ["mpijob"]
    assert bash("--num-replicas", "") == [""]


def test_bash_offers_files_and_directories(bash, tmp_path):
    (tmp_path / "a file").touch()
    (tmp_path / "a folder").mkdir()
    assert set(bash("--hostfile", "a")) == {"a file", "a folder"}
    assert bash("--log-dir", "=", "a") == ["a folder"]


def test_bash_leaves_the_programs_words_to_the_program(bash, tmp_path):
    (tmp_path / "data.txt").touch()
    assert "python3" in bash("-np", "2", "pytho") or "python" in bash("-np", "2", "pytho")
    assert bash("-np", "2", "true", "--num-i") == [""]
    assert bash("-v", "true", "da") == ["data.txt"]
    assert bash("--", "true", "--num-i") == [""]


@pytest.fixture
def zsh(tmp_path):
    program = shutil.which("zsh")
    if program is None:
        pytest.skip("zsh is not installed: its completion script cannot be tried (apt install zsh)")
    script, answers, ready = (tmp_path / name for name in ("completion", "answers", "ready"))
    script.write_text(completion_script("zsh"))
    setup = tmp_path / "setup"
    setup.write_text(ZSH_SETUP.format(script=script, answers=answers, ready=ready))
    answers.touch()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["TERM"] = "dumb"
        os.execv(program, [program, "-f", "-i"])  # noqa: S606 - the shell is what is tested
    os.write(terminal, f"source {setup}\n".encode())
    wait_for(ready.exists, terminal)

    def complete(text):
        lines = len(answers.read_text().splitlines())
        os.write(terminal, text.encode() + b"\x14")
        wait_for(lambda: len(answers.read_text().splitlines()) > lines, terminal)
        return answers.read_text().splitlines()[lines]

    yield complete
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def wait_for(condition, terminal):
    """Waits, and drains what the shell writes, which would stop it otherwise."""
    os.set_blocking(terminal, False)
    deadline = time.monotonic() + 60
    seen = b""
    while not condition():
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            time.sleep(0.01)
        assert time.monotonic() < deadline, seen
    os.set_blocking(terminal, True)


def test_zsh(zsh, tmp_path):
    (tmp_path / "data.txt").touch()
    (tmp_path / "dust").mkdir()
    assert zsh("poprun --num-inst") == "poprun --num-instances="
    assert zsh("poprun --print-topology=y") == "poprun --print-topology=yes "
    assert zsh("poprun --color al") == "poprun --color always "
    assert zsh("poprun -v --hostfile da") == "poprun -v --hostfile data.txt "
    assert zsh("poprun --log-dir d") == "poprun --log-dir dust/"
    assert zsh("poprun -np 2 true --num-inst") == "poprun -np 2 true --num-inst"
    assert zsh("poprun -x A -x B --mpi-local-args=-x --mpi-local-a").endswith("--mpi-local-args=")
    assert zsh("poprun -np 2 cat da") == "poprun -np 2 cat data.txt "


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_command_prints_a_script_that_the_shell_can_read(shell, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "popdist.poprun", "--completion", shell],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == completion_script(shell) + "\n"
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True, cwd=tmp_path)
