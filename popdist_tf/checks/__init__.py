"""The checks of TensorFlow programs as data, for Keras' `fit` and for `docs/checks.md`."""

from __future__ import annotations

from popdist.checks import Check

PARTS = Check(
    name="parts",
    code="PD431",
    judges="the gradients of a batch's halves combine to the gradient of the whole batch",
    when="after steps 8 and 64 of a model's `fit`, or after a shorter first epoch",
    cost="three forward and backward passes of a batch, outside of the compiled step",
    stops=False,
)

CHECKS = (PARTS,)
"""The checks of Keras models that are declared as data."""
