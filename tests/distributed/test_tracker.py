"""Means of metrics over real instances, as trackers get them."""

import csv
from importlib import import_module

import numpy as np
import pytest

import popdist
from tests.distributed.jobs import run_job

STEPS = 3


def draw(generator):
    return generator.normal(), generator.random()


made = []
"""The writers of this process."""


class Own:
    """A writer of the program's own."""

    def __init__(self):
        made.append(self)
        self.got = []

    def log(self, values, *, step):
        self.got.append([step, values])

    def finish(self):
        self.got.append("finished")


def train(folder, binding):
    import_module(f"horovod.{binding}")
    here = popdist.getInstanceIndex()
    generator = np.random.default_rng(here)
    with popdist.track(folder, to=["csv", "tensorboard", Own]) as tracker:
        means = []
        for step in range(STEPS):
            loss, accuracy = draw(generator)
            only = {"only here": np.float32(step)} if here == 1 else {}
            means.append(
                tracker.log({"loss": loss, "accuracy": accuracy, **only}, samples=here + 1)
            )
    return {"means": means, "written": [one.got for one in made]}


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_trackers_of_instance_0_get_the_weighted_means(tmp_path, framework):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first, second = run_job(train, framework=framework, folder=str(tmp_path), binding=framework)
    means = first["means"]
    assert second == {"means": means, "written": []}
    assert first["written"] == [
        [*([number, one] for number, one in enumerate(means, 1)), "finished"]
    ]
    generators = [np.random.default_rng(index) for index in range(2)]
    draws = [[draw(generator) for generator in generators] for _ in range(STEPS)]
    found = [[one["loss"], one["accuracy"]] for one in means]
    np.testing.assert_allclose(found, np.average(draws, axis=1, weights=[1, 2]), rtol=1e-12)
    assert [one["only here"] for one in means] == [0.0, 1.0, 2.0]

    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    events = EventAccumulator(str(tmp_path)).Reload()
    for name in ("loss", "accuracy", "only here"):
        assert [float(row[name]) for row in rows] == [one[name] for one in means]
        scalars = events.Tensors(name)
        assert [one.step for one in scalars] == [1, 2, 3]
        drawn = [one.tensor_proto.float_val[0] for one in scalars]
        np.testing.assert_allclose(drawn, [one[name] for one in means], rtol=1e-6)
