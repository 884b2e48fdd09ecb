"""What a training imports follows from the operators of its model."""

import subprocess
import sys

import onnx
import pytest
import torch
from torch import nn

import popdist_onnx
from popdist_onnx.graph import conform, paddings, resize
from popdist_onnx.graph.fold import RANDOM
from popdist_onnx.session import pipeline
from popdist_onnx.transforms import quantization, randomness, recognition

PROGRAM = """
import sys
import numpy as np
import popdist_onnx
shape = [int(word) for word in sys.argv[2:]]
x, y = np.zeros(shape, np.float32), np.zeros(shape[:1], np.int64)
popdist_onnx.train(sys.argv[1], x, y, batch_size=4)
print(*sorted(name for name in sys.modules if name.startswith("popdist_onnx.")))
"""


def test_operators_are_those_of_the_passes():
    assert set(randomness._REPLACED) == RANDOM
    assert set(recognition._KINDS) == pipeline.OF_GELU
    whole = {*quantization._KERNELS, *quantization._QUANTIZERS, "DequantizeLinear"}
    assert whole == pipeline.ON_WHOLE_NUMBERS
    assert set(quantization._STORED) <= pipeline.ON_WHOLE_NUMBERS


def test_modules_of_forms_register_them():
    written = {name: form.__module__ for name, form in conform._FORMS.items()}
    own = {
        name for name, module in written.items() if module in (paddings.__name__, resize.__name__)
    }
    assert own == set(conform._HOMES)
    for name, home in conform._HOMES.items():
        assert written[name] == f"popdist_onnx.graph.{home}"


LINEAR = nn.Linear(3, 2)
IMAGES = nn.Sequential(
    nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 2)
)


@pytest.mark.parametrize(
    ("net", "shape", "wanted", "unwanted"),
    [
        (
            LINEAR,
            [4, 3],
            {"gradients.products"},
            {
                *("gradients.convolution", "gradients.recurrent", "lowering.ctc"),
                *("runtime.convolutions", "transforms.quantization", "transforms.randomness"),
                *("transforms.statistics", "optimizers.adam", "training.evaluation"),
            },
        ),
        (
            IMAGES,
            [4, 1, 4, 4],
            {
                *("gradients.convolution", "gradients.normalization", "runtime.convolutions"),
                *("transforms.randomness", "transforms.statistics", "graph.paddings"),
            },
            {"gradients.recurrent", "transforms.quantization", "runtime.scatters"},
        ),
    ],
    ids=["linear", "images"],
)
def test_a_training_imports_what_its_operators_need(net, shape, wanted, unwanted, tmp_path):
    onnx.save(popdist_onnx.from_torch(net, torch.zeros(shape)), tmp_path / "net.onnx")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "net.onnx", *map(str, shape)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = {name.removeprefix("popdist_onnx.") for name in done.stdout.splitlines()[-1].split()}
    assert wanted <= found
    assert not unwanted & found
