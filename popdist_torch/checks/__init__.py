"""The checks of PyTorch programs as data, for what reports them and for `docs/checks.md`."""

from __future__ import annotations

from popdist.checks import Check

PARTS = Check(
    name="parts",
    code="PD335",
    judges="the gradient of a micro-batch is the mean of the gradients of its halves",
    when="after updates 1, 8 and 64 of `trainingModel`",
    cost="three forward and backward passes of a micro-batch, in float64",
    stops=False,
    repeats=True,
)
STATE = Check(
    name="state",
    code="PD007",
    judges="model, options, optimizer, divided data sets and weights are equal on all instances; "
    "later also optimizer states, and buffers of `trainingModel`",
    when="before the first update, after updates 1, 8, 64, 512, ..., and after changes by the "
    "program (`trainingModel`, plain loops, Lightning, DDP)",
    cost="a digest of the weights",
    stops=True,
)
ROWS = Check(
    name="rows",
    code="PD326",
    judges="instances train on different rows, where torch's loaders are read",
    when="at updates 1 and 2 of `trainingModel`; at the first update of plain loops and DDP",
    cost="a digest of the batch, or of the first gradients",
    stops=False,
)
BUFFERS = Check(
    name="buffers",
    code="PD311",
    judges="buffers are equal on all instances, those of normalization layers left out",
    when="after updates 1, 8, 64, 512, ... of a plain loop",
    cost="a digest of the buffers",
    stops=False,
)
EXCHANGE = Check(
    name="exchange",
    code="PD327",
    judges="an optimizer's gradients are exchanged before it updates weights",
    when="at the first step of each optimizer of a plain loop",
    cost="nothing",
    stops=False,
)
BY_HAND = Check(
    name="by-hand",
    code="PD333",
    judges="weights that a plain loop updates by itself come from exchanged gradients",
    when="at the first 64 backward passes, until one exchanges",
    cost="the first 256 values of each weight",
    stops=False,
)

CHECKS = (PARTS, STATE, ROWS, BUFFERS, EXCHANGE, BY_HAND)
"""All of them."""
