"""Interpreters load the parts that their environment names, and are else as without them."""

import subprocess
import sys
from pathlib import Path

import pytest

from popdist import program_status
from popdist.poprun.guard.stall import ProgramStatus
from popdist.startup.environment import (
    DDP,
    FOLDER,
    FRAMEWORKS,
    SDK_NAMES,
    STACKS,
    TENSORFLOW1,
    enable,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("before", "after"),
    {"": FOLDER, "/a:/b": f"{FOLDER}:/a:/b", f"/a:{FOLDER}": f"{FOLDER}:/a"}.items(),
)
def test_pythonpath_keeps_what_it_holds(before, after):
    environ = {"PYTHONPATH": before}
    enable(environ, DDP)
    enable(environ, DDP)
    assert environ == {"PYTHONPATH": after, "POPDIST_STARTUP": "ddp"}


def test_one_of_two_interfaces_of_tensorflow_is_asked_for():
    environ = {}
    for part in (FRAMEWORKS, SDK_NAMES, TENSORFLOW1):
        enable(environ, part)
    assert environ["POPDIST_STARTUP"] == "frameworks,tf1"
    enable(environ, SDK_NAMES)
    assert environ["POPDIST_STARTUP"] == "frameworks,sdk"


def run(code, *parts):
    environ = {"PYTHONPATH": str(ROOT), "PATH": ""}
    for part in parts:
        enable(environ, part)
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return ran.stdout


def test_parts_change_neither_the_path_nor_what_is_imported():
    code = "import sys; print(sys.path, sorted({*sys.modules} - {'popdist.startup.imports'}))"
    assert run(code, FRAMEWORKS, DDP) == run(code)


def test_each_part_waits_for_its_own_modules(tmp_path):
    (tmp_path / "keras.py").write_text("made = True")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); before = 'popdist' in sys.modules\n"
    code += "import keras; print(keras.made, before, 'popdist.checks.trained' in sys.modules)"
    assert run(code, DDP, FRAMEWORKS).split() == ["True", "False", "True"]
    assert run(code, DDP).split() == ["True", "False", "False"]


SLOW = """
import subprocess, sys, time
print("importing", flush=True)
sys.stdin.readline()
if sys.argv[1:]:
    subprocess.run([sys.executable, "-c", "import popdist; print('imported', flush=True); input()"])
else:
    import popdist
    print("imported", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("words", [(), ("child",)], ids=["itself", "in its child"])
def test_stacks_are_shown_before_and_after_popdist_is_imported(words):
    status = ProgramStatus()
    environ = {"PYTHONPATH": str(ROOT), "PATH": "", program_status.VARIABLE: str(status.fd)}
    enable(environ, STACKS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    command = [sys.executable, "-c", SLOW, *words]
    with subprocess.Popen(command, env=environ, pass_fds=[status.fd], **pipes) as program:
        assert program.stdout.readline() == "importing\n"
        assert status.position() == (0, "", "")  # as far as waiting is concerned
        assert 'File "<string>", line ' in status.dump()
        program.stdin.write("\n")
        assert program.stdout.readline() == "imported\n"
        assert (status.position()[0] == program.pid) == (not words)
        assert 'File "<string>", line ' in status.dump()
        program.communicate("\n")
