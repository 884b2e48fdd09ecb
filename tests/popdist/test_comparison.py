"""The comparison of two recordings, without processes."""

import json

import numpy as np
import pytest

from popdist.comparison import Run, compare
from popdist.recording import PLAN, Recording


def recorded(folder, *updates, gradients=()):
    """The run of one process whose model has these weights, from the first on."""
    folder.mkdir()
    plan = {"updates": len(updates), "scale": 1, "merges": True, "job": None}
    (folder / PLAN).write_text(json.dumps(plan))
    recording = Recording(folder)
    first, *others = ([(name, np.array(value)) for name, value in one] for one in updates)
    recording.before_update("model", first)
    for weights in others:
        recording.after_update("model", weights, gradients)
    return Run(folder)


def test_weights_of_equal_names_are_compared_one_by_one(tmp_path):
    start = [("weight", 1.0), ("weight", 2.0)]
    job = recorded(tmp_path / "job", start, [("weight", 1.5), ("weight", 2.5)])
    alone = recorded(tmp_path / "alone", start, [("weight", 1.25), ("weight", 2.5)])
    (update,) = compare(job, alone).updates
    assert update.result == "different: weight"
    alone = recorded(tmp_path / "other", start, [("weight", 1.5), ("weight", 2.25)])
    (update,) = compare(job, alone).updates
    assert update.result == "different: weight (number 2)"


@pytest.mark.parametrize(("gradient", "is_equal"), [(0.0, True), (0.4, False)])
def test_equal_gradients_outweigh_the_steps_that_an_adaptive_optimizer_makes(
    tmp_path, gradient, is_equal
):
    """Adam turns 1e-9 and -1e-9 into whole steps of opposite signs."""
    start = [("weight", [1.0, 1.0])]
    job, alone = (
        recorded(
            tmp_path / name,
            start,
            [("weight", [0.9, 1.0 + step])],
            gradients=[("weight", np.array([2.0 + more, sign * 1e-9]))],
        )
        for name, step, sign, more in (("job", 0.1, -1, gradient), ("alone", -0.1, 1, 0.0))
    )
    found = compare(job, alone)
    assert found.updates[0].distance > 1
    assert found.updates[0].gradients == pytest.approx(gradient / 2, abs=1e-8)
    assert found.is_equal is is_equal


def test_a_learning_rate_that_grows_with_the_job_is_named_from_the_first_update_on(tmp_path):
    """As in Horovod's examples: gradients are equal, and each step is twice as long."""
    start, gradients = [("weight", [1.0, 2.0])], [("weight", np.array([1.0, 3.0]))]
    job = recorded(tmp_path / "job", start, [("weight", [0.8, 1.4])], gradients=gradients)
    alone = recorded(tmp_path / "alone", start, [("weight", [0.9, 1.7])], gradients=gradients)
    found = compare(job, alone)
    assert found.updates[0].result == "different: a factor of 2"
    assert "a learning rate that is multiplied by size()" in found.hint


def test_half_precision_of_outputs_widens_the_tolerance(tmp_path):
    updates = [("weight", np.float32(1.1))], [("weight", np.float32(2.3))]
    for name, kind in (("whole", "float32"), ("half", "float16")):
        run = recorded(tmp_path / name, *updates)
        line = tmp_path / name / "instance.0"
        line.write_text(line.read_text().replace('"types": []', f'"types": ["{kind}"]'))
        tolerance = compare(run, Run(tmp_path / name)).updates[0].tolerance
        assert tolerance == pytest.approx({"whole": 1e-3, "half": 0.05}[name], rel=0.1)


@pytest.mark.parametrize("last", [1.0, 1.5])
def test_weights_that_never_change_prove_nothing(tmp_path, last):
    updates = [("weight", 1.0)], [("weight", 1.0)], [("weight", last)]
    found = compare(recorded(tmp_path / "job", *updates), recorded(tmp_path / "alone", *updates))
    assert found.updates[0].result == "equal: no weight has changed"
    assert found.code == ("PD024" if last == 1.0 else "")
    assert found.is_equal is (last != 1.0)


def test_updates_that_are_smaller_than_rounding_prove_nothing(tmp_path):
    """One moves a weight up and the other down, by the least step of its half precision."""
    start, step = np.full(64, 1, np.float16), np.float16(2**-10)
    job = recorded(tmp_path / "job", [("weight", start)], [("weight", start + step)])
    alone = recorded(tmp_path / "alone", [("weight", start)], [("weight", start - step)])
    found = compare(job, alone)
    assert found.exit_code == 2
    assert "update 1 has moved the weights by less than their rounding" in str(found)
    assert found.updates[0].result == "unknown: it is smaller than rounding"


@pytest.mark.parametrize("added", [5.0, 5.5])
def test_weights_that_a_program_adds_later_are_compared_too(tmp_path, added):
    """As where a training unfreezes layers."""
    start, one = [("weight", 1.0)], [("weight", 1.5)]
    job = recorded(tmp_path / "job", start, one, [("weight", 2.0), ("more", added)])
    alone = recorded(tmp_path / "alone", start, one, [("weight", 2.0), ("more", 5.0)])
    found = compare(job, alone)
    assert found.is_equal is (added == 5.0)
    assert found.updates[0].is_equal
    missing = recorded(tmp_path / "missing", start, one, [("weight", 2.0)])
    assert "train different weights: more" in compare(job, missing).problem
