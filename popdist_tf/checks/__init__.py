"""The checks of TensorFlow programs as data, for what reports them and for `docs/checks.md`."""

from __future__ import annotations

import warnings

from popdist.checks import Check, is_enabled

PARTS = Check(
    name="parts",
    code="PD431",
    judges="the gradients of a batch's halves combine to the gradient of the whole batch",
    when="after steps 8 and 64 of a model's `fit`, or after a shorter first epoch",
    cost="three forward and backward passes of a batch, outside of the compiled step",
    stops=False,
    repeats=True,
)
STATE = Check(
    name="state",
    code="PD007",
    judges="trained weights are equal on all instances",
    when="in the first step of a strategy, before the second update of the Keras wrapper, after "
    "the first step of an Estimator, and after each epoch",
    cost="a digest of the weights",
    stops=True,
)
ROWS = Check(
    name="rows",
    code="PD418",
    judges="instances train on different rows",
    when="as `fit` begins for arrays, else in the first two steps",
    cost="a digest of the batch, or of the last layer's gradient",
    stops=False,
)
SIZES = Check(
    name="sizes",
    code="PD431",
    judges="batches have as many rows on all instances",
    when="after each epoch, and at the end of an Estimator's training",
    cost="a count of the rows in each step",
    stops=False,
)
VARIABLES = Check(
    name="variables",
    code="PD416",
    judges="replicas write equal values to variables without an aggregation",
    when="in the first step of a strategy",
    cost="a digest of these variables",
    stops=False,
)
EXCHANGE = Check(
    name="exchange",
    code="PD436",
    judges="gradients are reduced over the instances",
    when="in the first step of a strategy, and as `fit` begins",
    cost="nothing",
    stops=False,
)
LAYERS = Check(
    name="layers",
    code="PD430",
    judges="preprocessing layers were adapted to the same data on all instances",
    when="before the first update",
    cost="a digest of what the layers have computed",
    stops=False,
)

CHECKS = (PARTS, STATE, ROWS, SIZES, VARIABLES, EXCHANGE, LAYERS)
"""All of them."""


def warn(check: Check, text: str, meant: str = "") -> None:
    """Warns of what a check has found, unless it is off; Python shows an equal warning once.

    Args:
        check: The check.
        text: What was found, and what to do.
        meant: Where to ignore the warning, as the beginning of a sentence; none for no such place.
    """
    if not is_enabled(check):
        return
    if meant:
        text += f" {meant}: warnings.filterwarnings('ignore', message=r'\\[{check.code}\\]')."
    warnings.warn(f"[{check.code}] {text}", stacklevel=2)
