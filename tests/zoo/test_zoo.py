"""Architectures of three libraries have torch's gradients, by both of its exporters."""

from importlib.util import find_spec

import pytest

from tests.zoo.architectures import IMAGES, PAIRS, SOUND, TEXT, TIMM, TORCHVISION
from tests.zoo.compare import FLOOR, TIMES, compare

ZOO = [("transformers", name) for name in (*TEXT, *PAIRS, *IMAGES, *SOUND)]
ZOO += [("timm", name) for name in TIMM]
ZOO += [("torchvision", name) for name in TORCHVISION]

REFUSED = {"nystromformer"}
"""Architectures that neither exporter of torch takes."""

CHAOS = 1e-3
"""Where losses of torch's own precisions differ by more, losses are not compared."""


@pytest.mark.skipif(find_spec("timm") is None, reason="make test-zoo has its own environment")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("family", "name"), ZOO, ids=[f"{one}-{two}" for one, two in ZOO])
def test_gradients_are_those_of_torch(family, name):
    found = compare(family, name)
    results = found["exporters"]
    if name in REFUSED:
        assert all("not exported" in one for one in results.values()), results
        return
    assert any("error" in one for one in results.values()), results
    for exporter, one in results.items():
        assert "failed" not in one, (exporter, one)
        if "error" in one:
            bound = max(TIMES * found["torch"], FLOOR)
            assert one["error"] <= bound, (exporter, one, found["torch"])
            if found["torch_losses"] < CHAOS:
                bound = max(TIMES * found["torch_losses"], FLOOR)
                assert one["losses"] <= bound, (exporter, one, found["torch_losses"])
