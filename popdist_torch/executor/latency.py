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
    """

    total: Spans = field(default_factory=Spans)
    inputs: Spans = field(default_factory=Spans)
    compute: Spans = field(default_factory=Spans)
    outputs: Spans = field(default_factory=Spans)


class Measured:
    """An object whose calls are measured; PopTorch's names."""

    def __init__(self) -> None:
        self._latencies = Latencies()

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
