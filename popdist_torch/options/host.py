"""Options that have an effect on a host: top-level options and the group ``Training``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptionError, OptionValueError
from popdist_torch.options.device_only import SYNTHETIC_DATA, PopartOptions
from popdist_torch.options.enums import (
    CommGroupType,
    ConnectionType,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
)
from popdist_torch.options.option_methods import (
    OptionMethod,
    at_least,
    flag,
    member,
    names,
    one_of,
    whole_number,
    with_effect,
)
from popdist_torch.options.storage import OptionsDict

if TYPE_CHECKING:
    from typing_extensions import Self


logger = logging.getLogger("popdist.torch")

_RANDOM_NORMAL = 2


class HostOptions(OptionsDict):
    """Options with an effect on a host."""

    _Popart: PopartOptions

    deviceIterations = OptionMethod(
        "How many times one call runs the model on fresh data.",
        "device_iterations",
        "device_iterations",
        at_least(1),
        effect="D of the batch formulas: updates per call in training, runs "
        "of the model in inference",
    )
    replicationFactor = OptionMethod(
        "How many replicas of the model this process runs.",
        "replication_factor",
        "replication_factor",
        at_least(1),
        effect="R of the batch formulas; poprun decides it under `popdist.poptorch.Options`",
    )
    broadcastBuffers = OptionMethod(
        "Whether buffers that the model changes must be the same in all replicas.",
        "broadcast_buffers",
        "broadcast_buffers",
        flag,
        default=True,
        effect="with False, every replica has its own buffers; running statistics are never shared",
    )
    connectionType = OptionMethod(
        "When the program attaches to devices.",
        "connection_type",
        "connection_type",
        one_of(ConnectionType),
        effect="`Never` makes running a model an error",
    )
    useIpuModel = OptionMethod(
        "Whether models run on the CPU even if the machine has a GPU.",
        "use_model",
        "use_model",
        flag,
        effect="models run on the CPU",
    )
    useIpuId = OptionMethod(
        "The device of this host on which models run.",
        "ipu_id",
        "ipu_id",
        at_least(0),
        effect="index of the GPU",
    )
    updatableNamedBuffers = OptionMethod(
        "Names of buffers that the host may update.",
        "buffers",
        "updatable_named_buffers",
        names,
        effect="`copyNamedBuffersToDevice` copies these buffers",
    )

    @with_effect("a call returns these outputs")
    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Which micro-batches' outputs a call returns.

        Args:
            output_mode: ``Final``, ``EveryN``, ``All``, ``Sum`` or ``Default`` (``Final`` for
                training, ``All`` for inference).
            output_return_period: N of ``EveryN``, in device iterations.

        Returns:
            These options.

        Raises:
            OptionError: ``EveryN`` without a positive period.
        """
        mode = member("outputMode", output_mode, OutputMode)
        if mode == OutputMode.EveryN:
            period = whole_number("the period of EveryN", output_return_period, least=1)
            self.set(output_return_period=period)
        elif output_return_period is not None:
            logger.info("the output period is ignored; only EveryN has one")
        self.set(output_mode=mode)
        return self

    @with_effect("the same as `outputMode`")
    def anchorMode(self, anchor_mode: OutputMode, anchor_return_period: int | None = None) -> Self:
        """The name of `outputMode` up to SDK 2.4.

        Args:
            anchor_mode: As for `outputMode`.
            anchor_return_period: As for `outputMode`.

        Returns:
            These options.
        """
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultOutputMode(self) -> bool:
        """Whether the output mode is still ``Default``.

        Returns:
            True if so.
        """
        return bool(self("output_mode") == OutputMode.Default)

    defaultAnchorMode = defaultOutputMode

    @with_effect("replicas of a group read the same rows; a call takes the rows of R / group size")
    def inputReplicaGrouping(
        self, input_group_size: int, input_group_type: CommGroupType = CommGroupType.Consecutive
    ) -> Self:
        """How many replicas read the same input.

        Args:
            input_group_size: Number of replicas in a group. It must divide the replication factor.
            input_group_type: A group of ``Consecutive`` has consecutive replicas. A group of
                ``Orthogonal`` has every n-th replica, where n is the number of groups.

        Returns:
            These options.

        Raises:
            OptionError: Another type.
        """
        kind = member("inputReplicaGrouping", input_group_type, CommGroupType)
        if kind not in (CommGroupType.Consecutive, CommGroupType.Orthogonal):
            raise OptionError(
                "PD300",
                "inputReplicaGrouping does not support this type",
                value=kind,
                accepted="CommGroupType.Consecutive or CommGroupType.Orthogonal",
            )
        size = whole_number("the group size", input_group_size, least=1)
        self.set(input_group_size=size, input_cgt=kind)
        return self

    @with_effect("seeds torch, the shuffling, and the random stream of every replica")
    def randomSeed(self, random_seed: int) -> Self:
        """Seeds the host's generator, the shuffling, and the random stream of every replica.

        If it is called before the model is built, all instances start with the same weights.

        Args:
            random_seed: The seed.

        Returns:
            These options.

        Raises:
            OptionError: Not a whole number.
        """
        value = whole_number("randomSeed", random_seed, least=None)
        self.createOrSet(random_seed=value)
        torch.manual_seed(value)
        return self

    @with_effect("the same as `connectionType(ConnectionType.Never)`")
    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Makes the job one that never runs a model.

        Args:
            ipu_version: Stored.

        Returns:
            These options.
        """
        self.createOrSet(ipu_version=whole_number("useOfflineIpuTarget", ipu_version, least=1))
        return self.connectionType(ConnectionType.Never)

    @with_effect("models run on generated data instead of their inputs")
    def enableSyntheticData(self, enabled: bool | int) -> Self:
        """Runs models on generated data, to measure speed without a data loader.

        Args:
            enabled: True, or False for real data. PopART's numbers of modes are accepted too; 0 is
                off.

        Returns:
            These options.
        """
        self._Popart.set(SYNTHETIC_DATA, _RANDOM_NORMAL if enabled else 0)
        return self

    @with_effect("`getAnchoredTensor` reads this weight, buffer or gradient")
    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int = 1,
    ) -> None:
        """Gives a tensor of the model a short name, under which it can be read.

        Args:
            short_name: The new name.
            long_name: One of the model's ``getTensorNames()``.
            output_mode: Which micro-batches of a training call are returned; the default is that
                of the model's outputs.
            output_return_period: N of ``EveryN``, in micro-batches.

        Raises:
            OptionError: ``EveryN`` without a positive period.
        """
        self._require_unfrozen()
        period = whole_number("the period of EveryN", output_return_period, least=1)
        self("anchored_tensors")[short_name] = long_name
        modes = {k: v for k, v in self.values().get("anchor_modes", {}).items() if k != short_name}
        if output_mode is not None:
            modes[short_name] = (member("anchorTensor", output_mode, OutputMode), period)
        if modes or self.exists("anchor_modes"):
            self.createOrSet(anchor_modes=modes)

    @property
    def synthetic_data(self) -> bool:
        """Whether models run on generated data."""
        return bool(self._Popart.options.get(SYNTHETIC_DATA, 0))


# ``Options.Training``: accumulation and the reduction of gradients.


def _reduction(name: str, value: Any) -> ReductionType:
    kind = member(name, value, ReductionType)
    if kind == ReductionType.NoReduction:
        raise OptionValueError("PD300", f"{name} cannot be NoReduction", accepted="Sum or Mean")
    return kind


class TrainingOptions(OptionsDict):
    """Options that only training models read."""

    path = "Training."

    gradientAccumulation = OptionMethod(
        "How many micro-batches every replica accumulates before an update.",
        "gradient_accumulation",
        "gradient_accumulation",
        at_least(1),
        effect="A of the batch formulas",
    )
    accumulationAndReplicationReductionType = OptionMethod(
        "How gradients are combined over accumulation steps and all replicas of the job.",
        "reduction_type",
        "accumulation_and_replication_reduction_type",
        _reduction,
        effect="`Mean` divides the sum by accumulation steps x replicas of the job, `Sum` does not",
    )
    setMeanAccumulationAndReplicationReductionStrategy = OptionMethod(
        "When the sum is divided to a mean.",
        "mean_reduction_strategy",
        "meanAccumulationAndReplicationReductionStrategy",
        one_of(MeanReductionStrategy),
        effect="`Running` divides losses before the backward pass, the others divide the sum",
    )
    setAutomaticLossScaling = OptionMethod(
        "Whether the loss scaling adapts to half-precision gradients.",
        "enabled",
        "auto_loss_scaling",
        flag,
        effect="multiplies the loss scaling by a power of two that adapts to half-precision "
        "gradients; no effect without such gradients",
    )
    setConvolutionDithering = OptionMethod(
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
