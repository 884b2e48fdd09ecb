"""The programs in the README run as they are printed, under the commands beside them."""

import re
import sys

import numpy as np
import pytest

import popdist_onnx
from tests.distributed.jobs import LAUNCHER, ROOT, run_command

PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

# What the PyTorch program leaves to the reader.
MODEL_AND_DATA = """
import torch
class MyModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
    def forward(self, x, y):
        output = self.linear(x)
        return output, torch.nn.functional.cross_entropy(output, y)
torch.manual_seed(0)
x = torch.randn(128, 4)
dataset = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
"""


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
            [*LAUNCHER, *options, sys.executable, path], env={"TF_CPP_MIN_LOG_LEVEL": "2"}
        )
        assert code == 0, output
        return output

    return run


def test_the_pytorch_program_learns(run):
    output = run(MODEL_AND_DATA + program("torch"), "--num-instances", "2", "--num-replicas", "4")
    losses = [float(line.split()[1]) for line in output.splitlines()]
    assert len(losses) == 10
    assert losses[-1] < 0.8 * losses[0]


def answers_of(output):
    found = dict(re.findall(r"^\[1,(\d)\]<stdout>:\d (.*)$", output, re.MULTILINE))
    assert set(found) == {"0", "1"}
    assert found["0"] == found["1"]
    return found["0"]


def test_the_tensorflow_program_gives_every_rank_the_same_weights(run):
    output = run(program("tensorflow"), "--num-instances=2", "--num-replicas=4", "--tag-output=yes")
    weights = [float(word) for word in answers_of(output).strip("[]").split()]
    assert weights == pytest.approx([3.0, 1.0], abs=0.2)


def test_the_onnx_program_trains_a_model_file_on_both_instances(run, tmp_path):
    builder = popdist_onnx.Builder()
    x = builder.addInputTensor(popdist_onnx.TensorInfo("FLOAT", [16, 4]), "x")
    w = builder.addInitializedInputTensor(np.zeros([4, 3], np.float32), "w")
    builder.addOutputTensor(builder.aiOnnx.matmul([x, w]))
    (tmp_path / "model.onnx").write_bytes(builder.getModelProto())
    text = program("popdist_onnx").replace("model.onnx", str(tmp_path / "model.onnx"))
    text = text.replace("trained.onnx", str(tmp_path / "trained.onnx"))
    output = run(text, "--num-instances=2", "--tag-output=yes")
    assert float(answers_of(output)) > 0.9
    assert (tmp_path / "trained.onnx").stat().st_size > 0
