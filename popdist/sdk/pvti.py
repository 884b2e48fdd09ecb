"""``libpvti``, with which programs annotate themselves for a profiler of the SDK.

On a host nothing collects the annotations, as in the SDK while ``PVTI_OPTIONS`` is not set: they
are accepted, and nothing is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist.settings import stored_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self


class Channel:
    """A group of annotations.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        stored_only("popdist.sdk", f"libpvti channel {name!r}")
        self.name = name


def createTraceChannel(name: str) -> Channel:  # noqa: N802 - published name
    """Makes a group of annotations.

    Args:
        name: Its name.
    """
    return Channel(name)


class Tracepoint:
    """Names what runs in a ``with`` statement.

    Args:
        channel: The group of the name.
        label: The name.
    """

    def __init__(self, channel: Channel, label: str) -> None:
        self.channel, self.label = channel, label

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the annotation; an error passes through."""

    @staticmethod
    def event(channel: Channel, label: str) -> None:
        """Names a moment.

        Args:
            channel: The group of the name.
            label: The name.
        """


class Graph:
    """A curve of numbers over time.

    Args:
        name: Its name.
        unit: The unit of the numbers.
    """

    def __init__(self, name: str, unit: str = "") -> None:
        stored_only("popdist.sdk", f"libpvti graph {name!r}")
        self.name, self.unit = name, unit

    def addSeries(self, name: str) -> Series:  # noqa: N802 - published name
        """Makes a curve of the graph.

        Args:
            name: Its name.
        """
        return Series(name)


class Series:
    """A series of numbers in a graph.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, value: float) -> None:
        """Adds a number at this time.

        Args:
            value: The number.
        """


class HeatmapDouble:
    """Histograms of numbers over time.

    Args:
        name: Its name.
        edges: The edges of the bins.
        unit: The unit of the numbers.
    """

    def __init__(self, name: str, edges: Sequence[float], unit: str = "") -> None:
        stored_only("popdist.sdk", f"libpvti heatmap {name!r}")
        self.name, self.edges, self.unit = name, edges, unit

    def add(self, values: Iterable[float]) -> None:
        """Adds a histogram at this time.

        Args:
            values: The numbers.
        """


def instrument(obj: Any, methods: Sequence[str], channel: Channel) -> Any:
    """Names calls of methods.

    Args:
        obj: An object, or a class.
        methods: Names of its methods.
        channel: The group of the names.

    Returns:
        The object.

    Raises:
        AttributeError: It has no such method.
    """
    del channel
    for name in methods:
        getattr(obj, name)
    return obj


def instrument_fn(channel: Channel) -> Callable[[Any], Any]:
    """Names calls of the function that it decorates.

    Args:
        channel: The group of the names.
    """
    del channel
    return lambda function: function


def __getattr__(name: str) -> Any:
    from popdist.sdk.surface import missing

    return missing(__name__, name)
