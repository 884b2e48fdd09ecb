"""The main job of `make demo`, and its checks."""

import gzip
import struct

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command
from tests.distributed.warm import python


@pytest.fixture(scope="module")
def program():
    return [*python("torch"), str(ROOT / "examples" / "torch_digits.py")]


def test_the_example_trains_under_poprun_and_checks_itself(program):
    code, output = run_command(
        [*LAUNCHER, "--num-instances=2", "--num-replicas=4", *program, "--epochs=8"], timeout=240
    )
    assert code == 0, output
    assert "2 instance(s) x 2 replica(s)" in output
    assert output.count("trained at") == 1  # by one instance
    assert "weights identical on all 2 instances: ok" in output
    assert output.count(": ok)") == 2  # accuracy, and equality with plain torch


def test_it_trains_without_poprun_and_a_failed_check_is_its_exit_code(program):
    code, output = run_command([*program, "--epochs=1", "--lr=1e-6", "--accumulation=1"])
    assert code == 1
    assert "test accuracy" in output
    assert output.count("FAILED") == 1
    assert "largest difference" in output


def idx(values, sizes):
    return struct.pack(f">HBB{len(sizes)}I", 0, 8, len(sizes), *sizes) + bytes(values)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_files_are_read_packed_or_not(program, tmp_path, packed):
    for name, count in (("train", 128), ("t10k", 20)):
        # An image is white in the row of its digit: learnable at once.
        labels = [index % 10 for index in range(count)]
        images = [255 * (row == digit) for digit in labels for row in range(28) for _ in range(28)]
        for kind, content in (
            ("images-idx3", idx(images, (count, 28, 28))),
            ("labels-idx1", idx(labels, (count,))),
        ):
            path = tmp_path / f"{name}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
    code, output = run_command([*program, f"--mnist={tmp_path}", "--epochs=6"])
    assert code == 0, output
    assert "128 to train on, 20 to test on" in output


def test_missing_mnist_files_are_named(program, tmp_path):
    code, output = run_command([*program, f"--mnist={tmp_path}"])
    assert code == 1
    assert "no train-images-idx3-ubyte" in output
