"""The checks of `popdist_onnx.train` as data, for the trainer and for `docs/checks.md`."""

from popdist.checks import Check

PARTS = Check(
    name="parts",
    code="PD600",
    judges="the loss of a micro-batch is the mean of the losses of its halves, for all weights",
    when="before updates 1, 8 and 64 of `popdist_onnx.train`",
    cost="18 forward passes of a micro-batch or its half, in two graphs that are compiled once",
    stops=False,
)

CHECKS = (PARTS,)
"""The checks that a training iterates over."""
