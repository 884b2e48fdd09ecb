"""The ONNX examples under poprun: they learn, and they find that the instances agree."""

import re

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command
from tests.distributed.warm import python


@pytest.mark.parametrize(
    ("program", "replicas"),
    [
        (["onnx_digits.py", "--epochs", "6"], "2"),
        (["onnx_digits.py", "--network", "cnn", "--epochs", "2"], "4"),
        (["onnx_finetune.py", "--epochs", "4"], "2"),
    ],
    ids=["mlp", "cnn", "finetune"],
)
def test_it_learns_and_the_instances_agree(program, replicas):
    name, *arguments = program
    command = [*LAUNCHER, "--num-instances", "2", "--num-replicas", replicas, *python("torch")]
    code, output = run_command([*command, ROOT / "examples" / name, *arguments])
    assert code == 0, output
    assert "instances agree" in output
    assert float(re.search(r"accuracy (?:[\d.]+ before, )?([\d.]+)", output)[1]) >= 0.93
