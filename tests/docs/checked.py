"""Checks the words of a command that cannot run here: programs, options, files and targets."""

import functools
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from popdist.poprun.doctor.session import _parser as doctor_parser
from popdist.poprun.options.parser import parse
from popdist.poprun.plan.job import make_job
from tests.distributed.jobs import ROOT

BESIDE_PYTHON = Path(sys.executable).parent
ELSEWHERE = {
    "cd",
    "conda",
    "docker",
    "eval",
    "export",
    "git",
    "cyclonedx-py",
    "kubectl",
    "rattler-build",
    "salloc",
    "sbatch",
    "srun",
    "ssh",
}
ELSEWHERE |= {"source", "unset"}
HELP = {"mpirun": ["--help", "all"], "horovodrun": ["--help"], "torchrun": ["--help"]}
ENVIRON = {"PATH": f"{BESIDE_PYTHON}:/usr/bin:/bin", "HF_TOKEN": "x", "B": "y"}


def check(command, files):
    """Fails where a command would not be understood.

    Args:
        command: The command, as a shell would get it.
        files: The names of the files that the page has shown.
    """
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    if words:
        program, *rest = words
        _CHECKS.get(program, functools.partial(_program, program))(rest, files)


def _poprun(words, _files):
    if words[:1] == ["doctor"]:
        doctor_parser().parse_args(words[1:])
    elif words[:1] != ["partitions"]:
        make_job(parse(words), ENVIRON)


def _python(words, files):
    if words[0] == "-m":
        assert find_spec(words[1]) is not None, words[1]
        _options(words[2:], _help(sys.executable, "-m", words[1], "--help"))
    else:
        assert words[0] in files or (ROOT / words[0]).exists(), f"no page shows {words[0]}"


def _make(words, _files):
    for target in words:
        if "=" in target:  # a variable
            continue
        assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def _pip(words, _files):
    extras = (ROOT / "pyproject.toml").read_text()
    for name in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        for extra in name.split(","):
            assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra


def _program(program, words, _files):
    if program in ELSEWHERE:
        return
    assert (BESIDE_PYTHON / program).exists() or shutil.which(program), program
    if program in HELP:
        ours = words[: next((i for i, w in enumerate(words) if "python" in w), len(words))]
        _options(ours, _help(str(BESIDE_PYTHON / program), *HELP[program]))


def _options(words, text):
    for word in words:
        if word.startswith("-") and word != "-":
            name = word.partition("=")[0]
            assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text), f"{word}\n{text}"


@functools.cache
def _help(*command):
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT
    ).stdout


_CHECKS = {
    "poprun": _poprun,
    "python": _python,
    "python3": _python,
    "make": _make,
    "pip": _pip,
}
