"""The programs in the README run as they are printed, under the commands beside them."""

import re

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command
from tests.distributed.warm import framework_of, python

PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def program(framework):
    (found,) = [
        text
        for text in PROGRAMS
        if f"import {framework}\n" in text or f"import {framework} as" in text
    ]
    return found


@pytest.fixture
def run(tmp_path):
    def run(text, *options):
        path = tmp_path / "train.py"
        path.write_text(text)
        code, output = run_command(
            [*LAUNCHER, *options, *python(framework_of(str(path))), path],
            env={"TF_CPP_MIN_LOG_LEVEL": "2"},
            cwd=tmp_path,
        )
        assert code == 0, output
        return output

    return run


def test_the_pytorch_program_learns(run):
    output = run(program("torch"), "--num-instances=2", "--num-replicas=4")
    losses = [float(line) for line in output.splitlines()]
    assert len(losses) == 2 * 2048 // (4 * 8)  # each instance prints one loss a step
    assert sum(losses[-4:]) < 0.4 * sum(losses[:4])


def test_it_fits_on_two_screens_and_names_the_ipu_at_once():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert any("Graphcore IPU" in line for line in lines[:5])
    assert all(len([line for line in text.splitlines() if line]) <= 15 for text in PROGRAMS)


def answers_of(output):
    found = dict(re.findall(r"^\[1,(\d)\]<stdout>:\d (.*)$", output, re.MULTILINE))
    assert set(found) == {"0", "1"}
    assert found["0"] == found["1"]
    return found["0"]


def test_the_tensorflow_program_gives_every_rank_the_same_weights(run):
    output = run(program("tensorflow"), "--num-instances=2", "--num-replicas=4", "--tag-output=yes")
    weights = [float(word) for word in answers_of(output).strip("[]").split()]
    assert weights == pytest.approx([3.0, 1.0], abs=0.2)


def test_the_onnx_program_trains_a_model_file_on_both_instances(run):
    output = run(program("popdist_onnx"), "--num-instances=2", "--tag-output=yes")
    assert float(answers_of(output)) > 0.9
