"""Measurement of how long the parts of calls take, and when the steps of a call ran."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_torch.executor.inputs import Arguments
    from popdist_torch.executor.outputs import Outputs


class _Timed:
    """A context that measures; a generator would cost more than small calls can bear."""

    __slots__ = ("_seconds", "_started")

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = seconds
        self._started = time.perf_counter()

    def __enter__(self) -> None:
        """Starts to measure."""
        self._started = time.perf_counter()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Ends it."""
        if kind is None:
            self._seconds.append(time.perf_counter() - self._started)


@dataclass
class Spans:
    """The durations of one part of a call, over all calls.

    Attributes:
        seconds: One duration a call.
    """

    seconds: list[float] = field(default_factory=list)

    def timed(self) -> _Timed:
        """Times what runs inside, unless it fails."""
        return _Timed(self.seconds)

    def summary(self) -> tuple[float, float, float]:
        """Shortest, longest and mean duration in seconds; zeros where nothing ran."""
        if not self.seconds:
            return 0.0, 0.0, 0.0
        return min(self.seconds), max(self.seconds), sum(self.seconds) / len(self.seconds)


@dataclass
class Latencies:
    """The durations of the parts of calls.

    Attributes:
        total: The whole call.
        inputs: Checking arguments and moving them to the device.
        compute: Forward and backward passes, updates, and waiting for the exchange.
        outputs: Joining the returned outputs.
        compilation: Copying the model to the device, before the first call.
    """

    total: Spans = field(default_factory=Spans)
    inputs: Spans = field(default_factory=Spans)
    compute: Spans = field(default_factory=Spans)
    outputs: Spans = field(default_factory=Spans)
    compilation: Spans = field(default_factory=Spans)


@dataclass(frozen=True)
class Timeline:
    """The moments of one call's steps; a step runs one micro-batch on every replica.

    Attributes:
        inputs: Number of input tensors.
        taken: For each step, the start and end of reading its rows, in seconds.
        outputs: Number of output tensors.
        given: For each step with outputs, the start and end of collecting them, in seconds.
    """

    inputs: int = 0
    taken: tuple[tuple[float, float], ...] = ()
    outputs: int = 0
    given: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, arguments: Arguments, outputs: Outputs, replicas: int) -> Timeline:
        """The timeline of a call."""
        given = _steps(outputs.given, replicas)
        if outputs.summed:
            given = given[-1:]  # sums come back once, when the last step has been added
        return cls(arguments.tensors(), _steps(arguments.taken, replicas), outputs.tensors, given)

    def counters(self) -> dict[str, list[list[float]]]:
        """The moments in PopTorch's form; see `Executor.getPerfCounters`."""
        return {
            "input": [[start for start, _ in self.taken] for _ in range(self.inputs)],
            "input_complete": [[stop for _, stop in self.taken] for _ in range(self.inputs)],
            "output": [[start for start, _ in self.given] for _ in range(self.outputs)],
            "output_complete": [[stop for _, stop in self.given] for _ in range(self.outputs)],
        }


def _steps(
    moments: Sequence[tuple[float, float]], replicas: int
) -> tuple[tuple[float, float], ...]:
    """Converts moments of the replicas' micro-batches to those of whole steps."""
    starts, stops = moments[::replicas], moments[replicas - 1 :: replicas]
    return tuple((start, stop) for (start, _), (_, stop) in zip(starts, stops, strict=True))
