"""The losses of the table, exported by torch and trained by ONNX Runtime in parts.

Each ends as for the global batch in one process, with a warning, or in an error of the export.
The reference is plain torch in float64.
"""

import logging

import numpy as np
import pytest
import torch
from torch import nn

import popdist
import popdist_onnx
from popdist.errors import PopdistError
from tests.distributed.jobs import run_job
from tests.properties.torch_losses import CLASSES, EQUAL, LOSSES, NAMED, OWN, WIDTH, Net

ROWS, UPDATES, RATE = 16, 2, 0.05
ROUNDING = 2e-6
"""Largest difference of float32 weights from float64 ones after these updates."""

EXACT = {  # computed from the global batch by a rewriting of the graph
    *("ignored_labels", "class_weights", "selected_rows", "sum_by_a_mask", "weighted_mean"),
    *("positive_anchors", "root_of_the_mean", "perplexity", "log_of_the_mean_probability"),
    *("square_of_the_mean", "squared_hinge_of_the_mean", "dice_over_the_batch", "mean_discrepancy"),
    "importance_of_experts",
}
REFUSED = {  # what a file cannot hold: detach, hooks, numbers of rows, gradients of gradients
    *("gradient_penalty_within_rows", "penalty_of_the_mean_slope", "reversed_gradient"),
    *("hook_that_multiplies", "hook_that_clips", "hook_that_normalizes", "function_that_clamps"),
    *("counted_embedding", "barlow_twins", "covariance", "sinkhorn", "median_row"),
    "ratio_by_its_own_mean",
}
MEASURED = [name for name, (verdict, _) in LOSSES.items() if verdict is not OWN]
OF_JOB = ["cross_entropy", "ignored_labels", "contrastive", "hard_examples"]


class Whole(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.net, self.loss = Net(), loss

    def forward(self, x, y):
        return self.loss(self.net, x, y)


def rows():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS * UPDATES, WIDTH, generator=generator)
    return x, torch.randint(0, CLASSES, (ROWS * UPDATES,), generator=generator)


def alone(module):
    """The weights that plain torch trains on the global batch, in float64."""
    module = module.double()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    x, y = rows()
    for step in range(UPDATES):
        taken = slice(step * ROWS, (step + 1) * ROWS)
        optimizer.zero_grad()
        module.loss(module.net, x[taken].double(), y[taken]).backward()
        optimizer.step()
    return {name: value.detach().numpy() for name, value in module.named_parameters()}


def outcome(name, parts, log):
    """Codes of warnings or of an error, and the largest difference of a weight from `alone`."""
    torch.manual_seed(1)
    module = Whole(LOSSES[name][1])
    x, y = rows()
    try:
        size = ROWS // parts  # len(x) is a constant of an exported file
        made = popdist_onnx.from_torch(module, (x[:size], y[:size]), input_names=["x", "y"])
        trainer = popdist_onnx.Trainer(
            made,
            loss="output",
            optimizer="sgd",
            learning_rate=RATE,
            batch_size=size,
            accumulation=parts // popdist.getNumTotalReplicas(),
        )
        given = {"x": x.numpy(), "y": y.numpy()}
        used = {value.name: given[value.name] for value in made.graph.input}
        trainer.fit(used, shuffle=False, progress=False)
    except PopdistError as error:
        return {"names": [error.code], "difference": None}
    wanted = alone(module)
    found = trainer.weights
    difference = max(
        float(np.abs(found[key] - wanted[key]).max()) for key in found if key in wanted
    )
    return {"names": ["warning"] * bool(log()), "difference": difference}


def require_right(name, seen):
    if name in REFUSED:
        assert seen["difference"] is None
        assert seen["names"]
    elif LOSSES[name][0] is EQUAL or name in EXACT:
        assert seen["difference"] < ROUNDING
        assert seen["names"] == []
    else:
        assert LOSSES[name][0] is NAMED
        assert seen["difference"] > ROUNDING
        assert seen["names"] == ["warning"]


@pytest.mark.parametrize("name", MEASURED)
def test_loss_in_two_parts(name, caplog):
    def warnings():
        return [one for one in caplog.records if one.levelname == "WARNING"]

    require_right(name, outcome(name, 2, warnings))


def outcomes():
    """Losses on two instances, with two accumulation steps."""
    warnings, handler = [], logging.Handler(logging.WARNING)
    handler.emit = warnings.append
    logging.getLogger("popdist.onnx").addHandler(handler)
    seen = {}
    for name in OF_JOB:
        warnings.clear()
        seen[name] = outcome(name, 4, lambda: warnings)
    return seen


def test_losses_on_two_instances():
    first, second = run_job(outcomes, instances=2, timeout=240)
    for name in OF_JOB:
        assert first[name]["difference"] == second[name]["difference"]
        assert second[name]["names"] == []  # the first instance warns for all
        require_right(name, first[name])
