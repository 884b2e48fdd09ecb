"""No loss of the table is silently another one in ``fit``, and no sound loss is named."""

import functools

import pytest

from tests.distributed.jobs import run_job
from tests.properties.keras_losses import EQUAL, LOSSES, NAMED, OWN
from tests.properties.keras_models import MODELS, outcomes

ROUNDING = 1e-12
"""Largest difference of float64 weights that are equal but for the order of additions."""

WAYS = ("strategy", "wrapper")

SUMMED = ("function_that_clamps", "hook_that_normalizes")
"""Change the gradient of each row, which is that of one process where gradients are summed."""


@functools.cache
def job():
    return run_job(outcomes, timeout=290)


def check(name, verdict):
    rows = [instance[name] for instance in job()]
    assert len({row["digest"] for row in rows}) == 1  # the instances are equal
    seen = rows[0]
    if verdict is EQUAL:
        assert seen["difference"] < ROUNDING
        assert seen["names"] == seen["reasons"] == []
    elif verdict is NAMED:
        assert seen["difference"] > ROUNDING
        assert seen["names"] == ["PD431"]
    else:
        assert verdict is OWN
        assert seen["names"] == []


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("way", WAYS)
def test_loss(way, name):
    is_summed = way == "strategy" and name in SUMMED
    check(f"{way}: {name}", EQUAL if is_summed else LOSSES[name][0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_model(way, name):
    check(f"{way}: {name}", MODELS[name][2][WAYS.index(way)])


def test_table_is_large_enough():
    verdicts = [verdict for verdict, *_ in LOSSES.values()]
    assert len(verdicts) >= 45
    assert verdicts.count(EQUAL) >= 15
