"""The end of a data set on two instances: as torch trains the whole batch, in double precision."""

import numpy as np
import pytest

import popdist
from tests.distributed.jobs import run_job
from tests.popdist_onnx.training.test_last_updates import EPOCHS, by_torch, made, samples


def trained(count, parts):
    trainer = made("adam", parts, popdist.getNumInstances())
    history = trainer.fit(*samples(count), epochs=EPOCHS, shuffle=False)
    return {"losses": list(history), **trainer.weights}


@pytest.mark.parametrize(("count", "parts"), [(22, 1), (23, 2)], ids=["even", "odd"])
def test_a_smaller_update_of_two_instances_is_that_of_the_whole_batch(count, parts):
    weights, losses = by_torch("adam", count)
    for found in run_job(trained, instances=2, count=count, parts=parts):
        np.testing.assert_allclose(found.pop("losses"), losses, rtol=1e-6)
        for name, wanted in weights.items():
            np.testing.assert_allclose(found[name], wanted, atol=2e-6, err_msg=name)
