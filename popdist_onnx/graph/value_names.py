"""The names of a graph's values: which are taken, and which nobody relies on yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


class ValueNames:
    """The names of a graph's values.

    Args:
        graph: The graph; names in its sub-graphs count as well.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._taken = {str(value.name) for value in graph.inputs} | set(graph.initializers)
        for node in graph.all_nodes():
            self._taken.update(str(value.name) for value in node.outputs)
        self._counts: dict[str, int] = {}
        self._made_up: set[str] = set()

    def fresh(self, stem: str) -> str:
        """Makes up a name.

        Args:
            stem: How it begins.

        Returns:
            ``<stem>_<n>``, which the graph does not have yet; to be claimed.
        """
        while True:
            count = self._counts[stem] = self._counts.get(stem, -1) + 1
            if (name := f"{stem}_{count}") not in self._taken:
                self._made_up.add(name)
                return name

    def claim(self, name: str) -> str:
        """Takes a name.

        Args:
            name: The name.

        Returns:
            The same.

        Raises:
            ValueError: A value has it already.
        """
        if name in self._taken:
            raise ValueError(f"the graph has a value {name!r} already")
        self._taken.add(name)
        return name

    def release(self, name: str) -> None:
        """Gives a name back, so that another value can have it.

        Args:
            name: The name.
        """
        self._taken.discard(name)
        self._made_up.discard(name)

    def is_made_up(self, name: str | None) -> bool:
        """Whether a name was made up here, so that no one outside relies on it.

        Args:
            name: The name.

        Returns:
            True where it was.
        """
        return name in self._made_up
