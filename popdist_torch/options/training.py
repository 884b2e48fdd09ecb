"""``Options.Training``: accumulation and how gradients combine."""

from __future__ import annotations

from popdist_torch.errors import OptionValueError
from popdist_torch.options.checks import flag, member, whole_number
from popdist_torch.options.effects import stored_only
from popdist_torch.options.enums import MeanReductionStrategy, ReductionType
from popdist_torch.options.storage import OptionsDict


class TrainingOptions(OptionsDict):
    """Options that only training reads."""

    def __init__(self) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> TrainingOptions:
        """Sets how many micro-batches every replica accumulates before an update.

        Args:
            gradient_accumulation: Micro-batches per update and replica.

        Returns:
            These options.

        Raises:
            OptionError: Not a whole number of at least 1.
        """
        self.set(
            gradient_accumulation=whole_number(
                "gradientAccumulation", gradient_accumulation, least=1
            )
        )
        return self

    def accumulationAndReplicationReductionType(
        self, reduction_type: ReductionType
    ) -> TrainingOptions:
        """Sets how gradients combine over accumulation steps and all replicas of the job.

        Args:
            reduction_type: ``Mean`` divides their sum by accumulation x global replicas; ``Sum``
                does not.

        Returns:
            These options.

        Raises:
            OptionValueError: Neither ``Sum`` nor ``Mean``.
        """
        name = "accumulationAndReplicationReductionType"
        if member(name, reduction_type, ReductionType) == ReductionType.NoReduction:
            raise OptionValueError("PD300", f"{name} cannot be NoReduction", accepted="Sum or Mean")
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> TrainingOptions:
        """Sets when the mean is divided.

        The strategies differ in rounding only. On a host the division is folded into the seed of
        the backward pass, which keeps half-precision gradients as small as ``Running`` does.

        Args:
            mean_reduction_strategy: The strategy.

        Returns:
            These options.
        """
        name = "setMeanAccumulationAndReplicationReductionStrategy"
        stored_only(f"Training.{name}")
        self.set(
            meanAccumulationAndReplicationReductionStrategy=member(
                name, mean_reduction_strategy, MeanReductionStrategy
            )
        )
        return self

    def setConvolutionDithering(self, enabled: bool) -> TrainingOptions:
        """Stores whether convolutions are spread over tiles differently per weight.

        Args:
            enabled: Whether they are.

        Returns:
            These options.
        """
        stored_only("Training.setConvolutionDithering")
        self.createOrSet(convolution_dithering=flag("setConvolutionDithering", enabled))
        return self
