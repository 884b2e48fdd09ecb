"""No loss of the table is silently another one in ``fit``, and no sound loss is named."""

import pytest

from tests.distributed.jobs import run_job
from tests.properties.keras_losses import EQUAL, LOSSES, NAMED, OWN
from tests.properties.keras_models import MODELS, outcomes

ROUNDING = 1e-12
"""Largest difference of float64 weights that are equal but for the order of additions."""

WAYS = ("strategy", "wrapper")

SUMMED = ("function_that_clamps", "hook_that_normalizes")
"""Change the gradient of each row, which is that of one process where gradients are summed."""


@pytest.fixture(scope="module", params=WAYS)
def job(request):
    """The way, and what its job gives."""
    return request.param, run_job(outcomes, way=request.param, timeout=290)


def check(rows, name, verdict):
    seen = [instance[name] for instance in rows]
    assert len({row["digest"] for row in seen}) == 1  # the instances are equal
    difference = next(row["difference"] for row in seen if "difference" in row)
    seen = seen[0]
    if verdict is EQUAL:
        assert difference < ROUNDING
        assert seen["names"] == seen["reasons"] == []
    elif verdict is NAMED:
        assert difference > ROUNDING
        assert seen["names"] == ["PD431"]
    else:
        assert verdict is OWN
        assert seen["names"] == []


@pytest.mark.parametrize("name", LOSSES)
def test_loss(job, name):
    way, rows = job
    is_summed = way == "strategy" and name in SUMMED
    check(rows, name, EQUAL if is_summed else LOSSES[name][0])


@pytest.mark.parametrize("name", MODELS)
def test_model(job, name):
    way, rows = job
    check(rows, name, MODELS[name][2][WAYS.index(way)])


def test_table_is_large_enough():
    verdicts = [verdict for verdict, *_ in LOSSES.values()]
    assert len(verdicts) >= 45
    assert verdicts.count(EQUAL) >= 15
