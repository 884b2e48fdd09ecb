"""The checks of PyTorch programs as data, for the training step and for `docs/checks.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist.checks import Check, is_enabled
from popdist_torch.checks.parts import PartsProbe

if TYPE_CHECKING:
    from popdist_torch.executor.batching import Batching
    from popdist_torch.executor.step import StepCheck
    from popdist_torch.options.placement import Placement

PARTS = Check(
    name="parts",
    code="PD335",
    judges="the gradient of a micro-batch is the mean of the gradients of its halves",
    when="after updates 1, 8 and 64 of `trainingModel`",
    cost="three forward and backward passes of a micro-batch, in float64",
    stops=False,
)

CHECKS = (PARTS,)
"""The checks that a training step iterates over."""


def checks_of(batching: Batching, here: Placement) -> list[StepCheck]:
    """The checks of one training model that its layout needs and its environment leaves on."""
    parts = batching.accumulation * here.total_replicas
    return [PartsProbe(warns=here.process_id == 0)] if parts > 1 and is_enabled(PARTS) else []
