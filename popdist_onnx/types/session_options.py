"""`SessionOptions`: how a session runs a model; unknown names and wrong types are errors."""

from __future__ import annotations

import dataclasses

from popdist_onnx.types.device_options import (
    CompilationOptions,
    PlacementOptions,
    ReportingOptions,
)
from popdist_onnx.types.host_options import HostOptions


@dataclasses.dataclass
class SessionOptions(HostOptions, PlacementOptions, CompilationOptions, ReportingOptions):
    """How a session runs a model.

    Options about IPUs keep the value that a program gives them and change nothing. Setting a name
    that is no option is an error here, where PopART's binding would take it without a word.
    """

    def getGlobalReplicationFactor(self) -> int:
        """The number of replicas over which a mean of gradients is taken."""
        if self.enableDistributedReplicatedGraphs:
            return self.globalReplicationFactor
        return self.replicatedGraphCount if self.enableReplicatedGraphs else 1

    def getAccumulationFactor(self) -> int:
        """The number of micro-batches per weight update."""
        return self.accumulationFactor if self.enableGradientAccumulation else 1
