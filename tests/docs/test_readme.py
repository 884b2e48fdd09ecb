"""The programs in the README run as they are printed, under the commands beside them."""

import re
import shlex
import shutil
import sys

import onnx
import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command
from tests.distributed.warm import framework_of, python

TEXT = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
NUMBER = r"(\d+\.\d+(?:e-\d+)?)"


def part(framework):
    """The section about a framework."""
    return TEXT.partition(f"\n## {framework}\n")[2].partition("\n## ")[0]


@pytest.fixture
def run(tmp_path):
    """Runs the program of a section by the section's command; its output."""

    def run(framework, command=None):
        (text,) = re.findall(r"```python\n(.*?)```", part(framework), re.DOTALL)
        path = tmp_path / "train.py"
        path.write_text(text)
        shutil.copy(ROOT / "examples" / "digits.onnx", tmp_path)
        command = command or re.findall(r"^\$ (poprun .*)$", part(framework), re.MULTILINE)[0]
        options = shlex.split(command)[1:-2]
        code, output = run_command(
            [*LAUNCHER, *options, *python(framework_of(str(path))), path],
            env={"TF_CPP_MIN_LOG_LEVEL": "2"},
            cwd=tmp_path,
        )
        assert code == 0, output
        return output

    return run


def numbers(text, word):
    return [float(found) for found in re.findall(rf"{word}:? {NUMBER}", text)]


def test_the_pytorch_program_learns_as_the_page_shows(run):
    losses = numbers(run("PyTorch"), "loss")
    assert losses == pytest.approx(numbers(part("PyTorch"), "loss"), abs=0.01)
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 3


def test_the_tensorflow_program_learns_as_the_page_says(run):
    (command,) = re.findall(r"^\$ (poprun .*)$", part("PyTorch"), re.MULTILINE)
    losses = numbers(run("TensorFlow", command), "loss")
    first, last = map(float, re.findall(rf"from {NUMBER} to {NUMBER}", part("TensorFlow"))[0])
    assert len(losses) == 3  # of one instance: the others have the same
    assert losses[0] == pytest.approx(first, abs=0.3)
    assert losses[-1] <= 10 * last


def test_the_onnx_program_trains_a_model_file_on_both_instances(run, tmp_path):
    (accuracy,) = numbers(run("ONNX"), "accuracy")
    assert accuracy == pytest.approx(numbers(part("ONNX"), "accuracy")[0], abs=2)
    before, after = (onnx.load(tmp_path / f"{name}.onnx") for name in ("digits", "trained"))
    old, new = ({one.name: one for one in model.graph.initializer} for model in (before, after))
    assert old.keys() <= new.keys()
    assert all(old[name] != new[name] for name in old)


def test_the_file_of_the_onnx_program_is_that_of_its_script(tmp_path):
    made = tmp_path / "digits.onnx"
    code, output = run_command([sys.executable, ROOT / "examples" / "digits_file.py", made])
    assert code == 0, output
    assert made.read_bytes() == (ROOT / "examples" / "digits.onnx").read_bytes()


def test_it_fits_on_two_screens_and_names_the_ipu_at_once():
    lines = TEXT.splitlines()
    assert len(lines) <= 130
    assert any("Graphcore IPU" in line for line in lines[:5])
    assert all(len([line for line in text.splitlines() if line]) <= 15 for text in PROGRAMS)
