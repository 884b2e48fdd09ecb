"""The comparison of two recordings, without processes."""

import json

import numpy as np
import pytest

from popdist.comparison import Run, compare
from popdist.recording import PLAN, Recording


def recorded(folder, *updates):
    """The run of one process whose model has these weights, from the first on."""
    folder.mkdir()
    plan = {"updates": len(updates), "scale": 1, "replicas": 1, "layout": [[0, 1]]}
    (folder / PLAN).write_text(json.dumps(plan))
    recording = Recording(folder)
    first, *others = ([(name, np.array(value)) for name, value in one] for one in updates)
    recording.before_update("model", first)
    for weights in others:
        recording.after_update("model", weights)
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


@pytest.mark.parametrize("last", [1.0, 1.5])
def test_weights_that_never_change_prove_nothing(tmp_path, last):
    updates = [("weight", 1.0)], [("weight", 1.0)], [("weight", last)]
    found = compare(recorded(tmp_path / "job", *updates), recorded(tmp_path / "alone", *updates))
    assert found.updates[0].result == "equal: no weight has changed"
    assert found.code == ("PD024" if last == 1.0 else "")
    assert found.is_equal is (last != 1.0)
