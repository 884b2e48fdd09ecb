from popdist.nearest import did_you_mean


def test_the_nearest_name_is_offered():
    assert did_you_mean("gradiant", ["gradients", "gradient", "loss"]) == "did you mean gradient?"
    assert did_you_mean("los", {"loss": 1}, shown="{!r}") == "did you mean 'loss'?"
    assert did_you_mean("los", ["loss"], shown="config.{}") == "did you mean config.loss?"


def test_nothing_near_is_no_question():
    assert did_you_mean("x", ["gradient"]) is None
    assert did_you_mean("gradient", []) is None
    assert did_you_mean("batch", ["batches"], cutoff=0.95) is None
