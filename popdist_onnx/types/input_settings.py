"""`InputSettings`: how an input reaches the replicas."""

from __future__ import annotations

from enum import IntEnum

from popdist_onnx.errors import ArgumentError, NotOnHostError
from popdist_onnx.types.enums import TileSet


class ReplicatedStreamMode(IntEnum):
    """Whether each replica gets data of its own, or all get the same."""

    Replicate = 0
    Broadcast = 1


class ExchangeStrategy(IntEnum):
    """When an input is fetched; nothing on a host depends on it."""

    JustInTime = 0
    OverlapInnerLoop = 1
    OverlapLoops = 2
    OverlapStep = 3


class InputSettings:
    """How an input reaches the replicas.

    Args:
        *settings: A `ReplicatedStreamMode`, a `TileSet` and an `ExchangeStrategy`, as needed.

    Raises:
        ArgumentError: An argument is none of these.
        NotOnHostError: The input is to be the same for all replicas.
    """

    def __init__(self, *settings: ReplicatedStreamMode | TileSet | ExchangeStrategy) -> None:
        for one in settings:
            if not isinstance(one, (ReplicatedStreamMode, TileSet, ExchangeStrategy)):
                raise ArgumentError(
                    "PD501",
                    "not a setting of an input",
                    value=one,
                    accepted="a ReplicatedStreamMode, a TileSet, an ExchangeStrategy",
                )
            if one is ReplicatedStreamMode.Broadcast:
                raise NotOnHostError(
                    "PD503",
                    "an input cannot be broadcast to replicas",
                    hint="repeat its data for every replica (numpy.repeat) when it is fed",
                )
        self.settings = settings
