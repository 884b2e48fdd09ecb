"""The session options on which something depends on a host."""

from __future__ import annotations

import dataclasses

from popdist_onnx.types.enums import ReductionType, SyntheticDataMode
from popdist_onnx.types.option_groups import AutomaticLossScalingSettings
from popdist_onnx.types.settings import Settings, option


@dataclasses.dataclass
class HostOptions(Settings):
    """The options that decide what a session computes."""

    enableGradientAccumulation: bool = option(
        False, "sum gradients over several micro-batches before an update"
    )
    accumulationFactor: int = option(1, "micro-batches per weight update")
    accumulationAndReplicationReductionType: ReductionType = option(
        ReductionType.Sum, "how gradients combine over micro-batches and replicas"
    )
    enableReplicatedGraphs: bool = option(False, "run several replicas in this process")
    replicatedGraphCount: int = option(1, "replicas in this process")
    enableDistributedReplicatedGraphs: bool = option(
        False, "this process holds some of the replicas of a job"
    )
    globalReplicationFactor: int = option(1, "replicas of the whole job")
    globalReplicaOffset: int = option(0, "the job's number of this process's first replica")
    hostAllReduce: bool = option(False, "exchange gradients on the host before each update")
    hostWeightUpdate: bool = option(
        False, "load weights from the host instead of updating them; refused"
    )
    hostAllReduceRemoteBuffer: bool = option(
        False, "let gradients travel through a remote buffer; refused"
    )
    automaticLossScalingSettings: AutomaticLossScalingSettings = option(
        AutomaticLossScalingSettings, "adapt the loss scale while training; refused"
    )
    constantWeights: bool = option(True, "an inference session's weights never change")
    syntheticDataMode: SyntheticDataMode = option(
        SyntheticDataMode.Off, "make up the inputs and copy nothing"
    )
    enableFloatingPointChecks: bool = option(
        False, "stop at the first gradient or weight that is not finite"
    )
    groupNormStridedChannelGrouping: bool = option(
        False, "group normalisation takes every n-th channel into a group"
    )
    enableLoadAndOffloadRNGState: bool = option(
        False, "let programs read and set the state of the random streams"
    )
    instrumentWithHardwareCycleCounter: bool = option(
        False, "count the cycles of a step; on a host, nanoseconds"
    )
