"""The checks of ONNX trainings as data, for what reports them and for `docs/checks.md`."""

from __future__ import annotations

from popdist.checks import Check

PARTS = Check(
    name="parts",
    code="PD600",
    judges="the loss of a micro-batch is the mean of the losses of its halves, for all weights",
    when="before updates 1, 8 and 64 of `popdist_onnx.train`",
    cost="18 forward passes of a micro-batch or its half, in two graphs that are compiled once",
    stops=False,
    repeats=True,
)
STATE = Check(
    name="state",
    code="PD007",
    judges="graph, options, optimizer, weights, and the data set of `popdist_onnx.train` are equal "
    "on all instances",
    when="before the first exchange of a session or a training",
    cost="a digest of the weights, and of 64 samples",
    stops=True,
)

CHECKS = (PARTS, STATE)
"""All of them."""
