"""Larger TensorFlow programs, with the published imports: they train what one process trains."""

from importlib.metadata import version
from pathlib import Path

import numpy as np

from tests.programs.launching import LARGER, run


def assert_equal_weights(file, reference):
    with np.load(file) as found, np.load(reference) as expected:
        assert sorted(found) == sorted(expected)
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=2e-4, atol=2e-5)


def test_a_compiled_loop_with_queues(tmp_path):
    program = LARGER / "tensorflow_loop.py"
    job, one = tmp_path / "job", tmp_path / "one"
    ranks, _ = run("poprun with names", program, f"--save={job}")
    (alone,), _ = run("alone with names", program, f"--save={one}", "--batch-size=32")
    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert ranks[0]["own"] != ranks[1]["own"]
    assert ranks[0]["losses"] == ranks[1]["losses"]
    assert len(alone["losses"]) == 4 * 5
    np.testing.assert_allclose(ranks[0]["losses"], alone["losses"], rtol=1e-4)
    for rank in ranks:
        np.testing.assert_allclose(rank["totals"], alone["totals"], rtol=1e-4)
        sums = np.reshape(rank["losses"], (4, 5)).sum(1)
        np.testing.assert_allclose(rank["totals"], sums, rtol=1e-5)
    assert alone["losses"][-1] < alone["losses"][0] / 3
    assert_equal_weights(f"{job}.npz", f"{one}.npz")
    with np.load(f"{job}.npz") as variables:
        assert any("Momentum" in name for name in variables)
    assert (tmp_path / "job.index").is_file()


def test_keras_fits_with_many_steps_per_execution(tmp_path):
    program = LARGER / "tensorflow_keras.py"
    # Keras 3 takes no other name for weights.
    suffix = "" if version("keras").startswith("2.") else ".weights.h5"
    job, one = tmp_path / f"job{suffix}", tmp_path / f"one{suffix}"
    options = ("--num-instances=2", "--num-replicas=4")
    ranks, _ = run("poprun with names", program, f"--save={job}", options=options)
    (alone,), _ = run("alone with names", program, f"--save={one}", "--batch-size=64")
    assert ranks[0].keys() == ranks[1].keys()
    for name in ranks[0].keys() - {"rank"}:
        assert ranks[0][name] == ranks[1][name], name
    for name in ("losses", "training_accuracies", "loss", "accuracy"):
        np.testing.assert_allclose(ranks[0][name], alone[name], rtol=1e-4)
    assert alone["accuracy"] > 0.85
    assert_equal_weights(f"{job}.npz", f"{one}.npz")
    assert Path(f"{job}{'' if suffix else '.index'}").is_file()
