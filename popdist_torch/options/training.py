"""``Options.Training``: accumulation and how gradients combine."""

from __future__ import annotations

from typing import Any

from popdist_torch.errors import OptionValueError
from popdist_torch.options.checks import at_least, flag, member, one_of
from popdist_torch.options.enums import MeanReductionStrategy, ReductionType
from popdist_torch.options.settings import Setting
from popdist_torch.options.storage import OptionsDict


def _reduction(name: str, value: Any) -> ReductionType:
    if member(name, value, ReductionType) == ReductionType.NoReduction:
        raise OptionValueError("PD300", f"{name} cannot be NoReduction", accepted="Sum or Mean")
    return ReductionType(value)


class TrainingOptions(OptionsDict):
    """Options that only training reads."""

    path = "Training."

    gradientAccumulation = Setting(
        "How many micro-batches every replica accumulates before an update.",
        "gradient_accumulation",
        "gradient_accumulation",
        at_least(1),
        effect="A of the batch algebra",
    )
    accumulationAndReplicationReductionType = Setting(
        "How gradients combine over accumulation steps and all replicas of the job.",
        "reduction_type",
        "accumulation_and_replication_reduction_type",
        _reduction,
        effect="`Mean` divides the sum by accumulation x global replicas, `Sum` does not",
    )
    # The strategies differ in rounding only. On a host the division is folded into the seed of the
    # backward pass, which keeps half-precision gradients as small as ``Running`` does.
    setMeanAccumulationAndReplicationReductionStrategy = Setting(
        "When the mean is divided.",
        "mean_reduction_strategy",
        "meanAccumulationAndReplicationReductionStrategy",
        one_of(MeanReductionStrategy),
    )
    setAutomaticLossScaling = Setting(
        "Whether the loss scaling follows the size of half-precision gradients.",
        "enabled",
        "auto_loss_scaling",
        flag,
        effect="multiplies the loss scaling by a power of two that follows half-precision "
        "gradients; nothing where there are none",
    )
    setConvolutionDithering = Setting(
        "Whether convolutions are spread over tiles differently per weight.",
        "enabled",
        "convolution_dithering",
        flag,
    )

    def __init__(self) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )
