"""No loss of the table is silently another one in a job, and no sound loss is named."""

import pytest

from tests.distributed.jobs import run_job
from tests.properties.torch_losses import EQUAL, LOSSES, NAMED, OWN
from tests.properties.torch_models import outcomes

LAYOUTS = {
    "1 x 2": {"instances": 1, "replicas": 2},
    "2 x 1": {"instances": 2, "replicas": 2},
    "2 x 2, accumulation 2": {"instances": 2, "replicas": 4, "accumulation": 2},
}
ROUNDING = 1e-12
"""Largest difference of float64 weights that are equal but for the order of additions."""


@pytest.fixture(scope="module", params=LAYOUTS)
def job(request):
    """What the job of a layout gives."""
    return run_job(outcomes, timeout=240, **LAYOUTS[request.param])


@pytest.mark.parametrize("name", LOSSES)
def test_loss(job, name):
    verdict, _ = LOSSES[name]
    rows = [instance[name] for instance in job]
    assert len({row["difference"] for row in rows}) == 1  # the instances are equal
    seen = rows[0]
    if verdict is EQUAL:
        assert seen["difference"] < ROUNDING
        assert seen["names"] == []
    elif verdict is NAMED:
        assert seen["difference"] > ROUNDING
        assert seen["names"] == ["PD335"]
    else:
        assert verdict is OWN
        assert seen["names"] == []


def test_table_is_large_enough():
    verdicts = [verdict for verdict, _ in LOSSES.values()]
    assert len(verdicts) >= 45
    assert verdicts.count(EQUAL) >= 15
