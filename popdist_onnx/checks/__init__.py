"""The checks of `popdist_onnx.train` as data, for the trainer and for `docs/checks.md`."""

from popdist.checks import Check

PARTS = Check(
    name="parts",
    code="PD600",
    judges="the loss of a micro-batch is the mean of the losses of its halves, for all weights",
    when="before updates 1, 8 and 64 of `popdist_onnx.train`",
    cost="eight to twelve forward passes of a micro-batch, and a graph that is compiled once",
    stops=False,
)

CHECKS = (PARTS,)
"""The checks that a training iterates over."""
