"""How long the parts of calls take."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Spans:
    """The durations of one part of a call, over all calls.

    Attributes:
        seconds: One duration a call.
    """

    seconds: list[float] = field(default_factory=list)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Times what runs inside.

        Yields:
            Nothing.
        """
        started = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - started)

    def summary(self) -> tuple[float, float, float]:
        """Shortest, longest and mean duration.

        Returns:
            Seconds; zeros where nothing ran.
        """
        if not self.seconds:
            return 0.0, 0.0, 0.0
        return min(self.seconds), max(self.seconds), sum(self.seconds) / len(self.seconds)


@dataclass
class Latencies:
    """The parts of a call.

    Attributes:
        total: All of it.
        inputs: Checking arguments and bringing them to the device.
        compute: Forward and backward passes, updates, and waiting for the exchange.
        outputs: Joining what comes back.
        compilation: Copying the model to the device, before the first call.
    """

    total: Spans = field(default_factory=Spans)
    inputs: Spans = field(default_factory=Spans)
    compute: Spans = field(default_factory=Spans)
    outputs: Spans = field(default_factory=Spans)
    compilation: Spans = field(default_factory=Spans)


@dataclass(frozen=True)
class Timeline:
    """What one call did when.

    Attributes:
        inputs: Number of input tensors.
        taken: When each micro-batch was taken from them, and when that was done, in seconds.
        outputs: Number of output tensors.
        given: The same of micro-batches that come back.
    """

    inputs: int = 0
    taken: tuple[tuple[float, float], ...] = ()
    outputs: int = 0
    given: tuple[tuple[float, float], ...] = ()


class Measured:
    """An object whose calls are measured; PopTorch's names."""

    def __init__(self) -> None:
        self._latencies = Latencies()
        self._timeline = Timeline()

    def getLatency(self) -> tuple[float, float, float]:
        """How long calls take.

        Returns:
            Shortest, longest and mean, in seconds; zeros where nothing ran.
        """
        return self._latencies.total.summary()

    def getComputeLatency(self) -> tuple[float, float, float]:
        """How long passes, exchange and updates of a call take.

        Returns:
            Shortest, longest and mean, in seconds; zeros where nothing ran.
        """
        return self._latencies.compute.summary()

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """How long a call's arguments take to the device.

        Returns:
            Shortest, longest and mean, in seconds; zeros where nothing ran.
        """
        return self._latencies.inputs.summary()

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """How long a call's outputs take to the program.

        Returns:
            Shortest, longest and mean, in seconds; zeros where nothing ran.
        """
        return self._latencies.outputs.summary()

    def compilationTime(self) -> float:
        """How long the model took to be prepared.

        Returns:
            Seconds, all preparations together; zero before the first.
        """
        return sum(self._latencies.compilation.seconds)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """When the last call read its inputs and gave its outputs.

        Returns:
            Four lists of seconds since an arbitrary moment: ``input`` and ``input_complete`` have a
            row for each input tensor and a value for each micro-batch that was taken from it,
            ``output`` and ``output_complete`` a row for each output tensor and a value for each
            micro-batch that comes back. They are empty where nothing ran. Tensors of a micro-batch
            are taken together, so rows are equal.
        """
        seen = self._timeline
        return {
            "input": [[start for start, _ in seen.taken] for _ in range(seen.inputs)],
            "input_complete": [[stop for _, stop in seen.taken] for _ in range(seen.inputs)],
            "output": [[start for start, _ in seen.given] for _ in range(seen.outputs)],
            "output_complete": [[stop for _, stop in seen.given] for _ in range(seen.outputs)],
        }
