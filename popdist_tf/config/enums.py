"""The published enumerations of the configuration."""

from __future__ import annotations

from enum import Enum


class DeviceConnectionType(Enum):
    """When a program attaches to its devices."""

    ALWAYS = 0
    ON_DEMAND = 1
    NEVER = 2
    PRE_COMPILE = 3


class SelectionOrder(Enum):
    """In which order devices are taken."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class SchedulingAlgorithm(Enum):
    """Which scheduler orders a program's operations."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(Enum):
    """Whether values are rounded stochastically."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2


class ExecutionProfileType(Enum):
    """What a profile records (the options of SDK 2.2 and before)."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class MergeRemoteBuffersBehaviour(Enum):
    """Whether remote buffers of equal shape are merged."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2
