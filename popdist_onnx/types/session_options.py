"""`SessionOptions`: how a session runs a model; unknown names and wrong types are errors."""

from __future__ import annotations

import dataclasses
from typing import Any

from popdist_onnx.types.device_options import (
    CompilationOptions,
    PlacementOptions,
    ReportingOptions,
)
from popdist_onnx.types.host_options import HostOptions

# Names of releases 1.3 to 2.0.
_OLDER = {"accumulationReductionType": "accumulationAndReplicationReductionType"}


@dataclasses.dataclass
class SessionOptions(HostOptions, PlacementOptions, CompilationOptions, ReportingOptions):
    """How a session runs a model.

    Options about IPUs keep the value that a program gives them and change nothing. Setting a name
    that is no option is an error here, where PopART's binding would take it without a word.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(_OLDER.get(name, name), value)

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only.
        return getattr(self, _OLDER[name]) if name in _OLDER else super().__getattr__(name)

    def getGlobalReplicationFactor(self) -> int:
        """The number of replicas over which a mean of gradients is taken."""
        if self.enableDistributedReplicatedGraphs:
            return self.globalReplicationFactor
        return self.replicatedGraphCount if self.enableReplicatedGraphs else 1

    def getAccumulationFactor(self) -> int:
        """The number of micro-batches per weight update."""
        return self.accumulationFactor if self.enableGradientAccumulation else 1
