"""No loss of the table is silently another one in ``fit``, and no sound loss is named."""

from functools import cache

import pytest

from tests.distributed.jobs import JobFailedError, run_job
from tests.properties.keras_losses import EQUAL, LOSSES, NAMED, OWN
from tests.properties.keras_models import MODELS, outcomes
from tests.properties.torch_losses import SOME, SUMMED

ROUNDING = 1e-12
"""Largest difference of float64 weights that are equal but for the order of additions."""

WAYS = ("strategy", "wrapper")


TRAINED = {"strategy": (*LOSSES,), "wrapper": (*SOME, *SUMMED)}
"""Losses by the way of training: the check of halves of a batch is the same for both ways."""


@cache
def trained(way, table):
    """What each instance saw, or the error, so that no row begins a failed job once more."""
    chosen = TRAINED[way] if table == "losses" else (*MODELS,)
    try:
        return run_job(outcomes, way=way, chosen=chosen, timeout=290)
    except JobFailedError as error:
        return error


def seen_of(way, name):
    """What each instance saw of a case."""
    found = trained(way, "losses" if name in LOSSES else "models")
    if isinstance(found, JobFailedError):
        raise found
    return [instance[name] for instance in found]


def check(seen, verdict):
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


@pytest.mark.parametrize(("way", "name"), [(way, name) for way in WAYS for name in TRAINED[way]])
def test_loss(way, name):
    is_summed = way == "strategy" and name in SUMMED
    check(seen_of(way, name), EQUAL if is_summed else LOSSES[name][0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_model(way, name):
    check(seen_of(way, name), MODELS[name][2][WAYS.index(way)])


def test_table_is_large_enough():
    verdicts = [verdict for verdict, *_ in LOSSES.values()]
    assert len(verdicts) >= 45
    assert verdicts.count(EQUAL) >= 15
